// Tokens outside of a draft's trimmed head, scored by their rows of the embedding where these are
// the head's as well: those of a session's text, and those whose noise may make them the draw.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "blocks.h"
#include "draws.h"

namespace SLIPSTREAM_ISA {

using slipstream::ChainState;
using slipstream::Kind;
using slipstream::Model;
using slipstream::RankedRows;

constexpr size_t kRowsAhead = 8;  // rows that are fetched before they are needed

// A row of the embedding times a state, both [size]; `room` [size] is for other kinds of rows.
inline float score_row(Kind kind, const uint8_t* row, const float* state, int size, float* room) {
  Lanes total = zero();
  if (kind == Kind::kQ8_0) {
    for (int i = 0; i < size; i += slipstream::kGroup, row += slipstream::kGroup + 2) {
      slipstream::Float16 scale;
      std::memcpy(&scale, row, sizeof scale);
      const int8_t* codes = reinterpret_cast<const int8_t*>(row + 2);
      const Lanes half = mul(load(codes), load(state + i));
      const Lanes both = fma(load(codes + kLanes), load(state + i + kLanes), half);
      total = fma(all(slipstream::to_float(scale)), both, total);
    }
    return sum(total);
  }
  if (kind == Kind::kBFloat16 && size % kLanes == 0) {
    const auto* numbers = reinterpret_cast<const slipstream::BFloat16*>(row);
    for (int i = 0; i < size; i += kLanes) {
      total = fma(load(numbers + i), load(state + i), total);
    }
    return sum(total);
  }
  slipstream::dequantise(kind, row, size, room);
  for (int i = 0; i < size; i += kLanes) {
    total = fma(load_partial(room + i, size - i), load_partial(state + i, size - i), total);
  }
  return sum(total);
}

// Scores of tokens behind a state.
inline void score_rows(const Model& model, const std::vector<int64_t>& tokens, const float* state,
                       float* scores) {
  const int size = model.shape.hidden;
  const size_t bytes = slipstream::row_bytes(model.embedding_kind, size);
  std::vector<float> room(size);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i + kRowsAhead < tokens.size()) {
      const uint8_t* next = model.embedding + tokens[i + kRowsAhead] * bytes;
      for (size_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(next + byte);
    }
    const uint8_t* row = model.embedding + tokens[i] * bytes;
    scores[i] = score_row(model.embedding_kind, row, state, size, room.data());
  }
}

// Adds about `count` tokens of the vocabulary, those with the largest noise; small numbers stand for
// large noise.
inline void add_noisy(int64_t vocabulary, int64_t count, Noise noise, std::vector<int64_t>& tokens) {
  constexpr int kBlockTokens = 32;
  const double share = static_cast<double>(count) / static_cast<double>(vocabulary);
  const uint32_t bound = static_cast<uint32_t>(std::min(share * 0x1p32, 0x1p32 - 1));
  for (int64_t start = 0; start < vocabulary; start += kBlockTokens) {
    uint32_t bits[kBlockTokens], least = UINT32_MAX;
    for (int i = 0; i < kBlockTokens; ++i) {
      bits[i] = noise_bits(static_cast<uint32_t>(start + i), noise);
    }
    for (int i = 0; i < kBlockTokens; ++i) least = std::min(least, bits[i]);
    if (least >= bound) continue;
    const int64_t end = std::min(start + kBlockTokens, vocabulary);
    for (int64_t token = start; token < end; ++token) {
      if (bits[token - start] < bound) tokens.push_back(token);
    }
  }
}

// Tokens outside of the head that are scored for a chain at `depth`, ascending, `most` at most.
inline std::vector<int64_t> outside_tokens(const Model& model, const ChainState& chain,
                                           int64_t depth, const RankedRows& out, int64_t most) {
  std::vector<int64_t> tokens;
  if (most == 0) return tokens;
  if (chain.is_sampled != 0 && out.num_noisy > 0) {
    const Noise noise = draw_noise(chain.seed, chain.position + depth - 1);
    add_noisy(model.vocabulary, out.num_noisy, noise, tokens);
    const int64_t* last = out.ids + model.head.outputs;
    const auto is_inside = [&](int64_t token) { return std::binary_search(out.ids, last, token); };
    tokens.erase(std::remove_if(tokens.begin(), tokens.end(), is_inside), tokens.end());
    tokens.resize(std::min<size_t>(tokens.size(), most - chain.num_others));
  }
  tokens.insert(tokens.end(), chain.others, chain.others + chain.num_others);
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

}  // namespace SLIPSTREAM_ISA
