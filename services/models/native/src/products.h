// Products of few tokens with packed weights. Lanes are outputs: each output is one chain of fused
// multiply-adds over the inputs in order, so its bits depend on its token and its weights alone,
// not on how many tokens or tiles are computed side by side, on threads or on the instruction set.
#pragma once

#include <algorithm>
#include <utility>

#include "coded.h"
#include "lanes.h"
#include "model.h"

namespace SLIPSTREAM_ISA {

using slipstream::kTile;
using slipstream::Span;
using slipstream::Team;

static_assert(kTile == kLanes);

template <int ROWS, int TILES>
using Sums = Lanes[ROWS][TILES];

// Outputs [ROWS, TILES * 16] of neighbouring tokens `x` [ROWS, inputs] and tiles, without the bias.
using Kernel = void (*)(const Matrix& m, int tile, const float* x, float* out);

template <class T, int ROWS, int TILES>
void multiply_tiles(const Matrix& m, int tile, const float* x, float* out) {
  const size_t inputs = m.inputs, stride = m.tile_bytes() / sizeof(T);
  const T* weights = reinterpret_cast<const T*>(m.data.get()) + tile * stride;
  Sums<ROWS, TILES> sums;
  for (auto& row : sums) {
    for (Lanes& sum : row) sum = zero();
  }
  const auto add_input = [&](size_t k, auto load_weights) {
    Lanes w[TILES];
    for (int t = 0; t < TILES; ++t) w[t] = load_weights(weights + t * stride + k / 2 * 2 * kTile);
    for (int r = 0; r < ROWS; ++r) {
      const Lanes value = all(x[r * inputs + k]);
      for (int t = 0; t < TILES; ++t) sums[r][t] = fma(w[t], value, sums[r][t]);
    }
  };
  for (size_t k = 0; k < inputs; ++k) {
    for (int t = 0; t < TILES; ++t) {
      const char* ahead = reinterpret_cast<const char*>(weights + t * stride + k * kTile) + kAhead;
      __builtin_prefetch(ahead);
      if (sizeof(T) * 2 * kTile > 64) __builtin_prefetch(ahead + 64);
    }
    add_input(k, [](const T* p) { return load_first(p); });
    if (++k < inputs) add_input(k, [](const T* p) { return load_second(p); });
  }
  for (int r = 0; r < ROWS; ++r) {
    for (int t = 0; t < TILES; ++t) store(out + (r * TILES + t) * kTile, sums[r][t]);
  }
}

// The kernels for 1 to kMaxRows tokens.
template <class T, int TILES, int... ROWS>
inline Kernel kernel_for(int rows, std::integer_sequence<int, ROWS...>) {
  static constexpr Kernel kernels[] = {multiply_tiles<T, ROWS + 1, TILES>...};
  return kernels[rows - 1];
}

template <class T>
inline Kernel kernel_for(int rows, int tiles) {
  constexpr auto counts = std::make_integer_sequence<int, kMaxRows>();
  return tiles == 1 ? kernel_for<T, 1>(rows, counts) : kernel_for<T, kMaxTiles>(rows, counts);
}

inline Kernel kernel_for(Kind kind, int rows, int tiles) {
  if (kind == Kind::kBFloat16) return kernel_for<BFloat16>(rows, tiles);
  return kernel_for<float>(rows, tiles);
}

// The same of weights in blocks and encoded tokens.
using CodedKernel = void (*)(const Matrix& m, int tile, const Coded& x, int64_t row, float* out);

template <class Format, int... ROWS>
inline CodedKernel kernel_for(int rows, std::integer_sequence<int, ROWS...>) {
  static constexpr CodedKernel kernels[] = {multiply_codes<Format, ROWS + 1>...};
  return kernels[rows - 1];
}

inline CodedKernel kernel_for(Kind kind, int rows) {
  constexpr auto counts = std::make_integer_sequence<int, kMaxCodedRows>();
  switch (kind) {
    case Kind::kQ8_0: return kernel_for<Bytes>(rows, counts);
    case Kind::kQ4_K: return kernel_for<SuperNibbles>(rows, counts);
    case Kind::kQ6_K: return kernel_for<SuperBytes>(rows, counts);
    default: return kernel_for<Nibbles>(rows, counts);
  }
}

// The tokens of a product: as they are, or encoded where the weights are in blocks.
struct Tokens {
  const float* values;
  const Coded* coded;
};

// Outputs [rows, tiles * 16], without the bias.
inline void multiply(const Matrix& m, int tile, int tiles, const Tokens& x, int64_t row, int rows,
                     float* out) {
  if (is_coded(m.kind)) return kernel_for(m.kind, rows)(m, tile, *x.coded, row, out);
  kernel_for(m.kind, rows, tiles)(m, tile, x.values + row * m.inputs, out);
}

// Tokens that go together next: as many as there are registers for, in parts of like size.
inline int next_rows(int64_t left, int most) {
  if (left <= most) return static_cast<int>(left);
  const int64_t parts = (left + most - 1) / most;
  return static_cast<int>((left + parts - 1) / parts);
}

// One member's share of the outputs of `tiles`. `write(row, output, lanes, count)` takes the outputs
// of a token from `output` on, of which `count` exist.
template <class Write>
inline void product(const Team& team, int member, const Matrix& m, Span share, const Tokens& x,
                    int64_t rows, const Write& write) {
  // One token waits for memory, which is fastest where there is one stream.
  const int most_tiles = is_coded(m.kind) || rows == 1 ? 1 : kMaxTiles;
  const int most_rows = is_coded(m.kind) ? kMaxCodedRows : kMaxRows;
  static_assert(kMaxCodedRows <= kMaxRows * kMaxTiles);
  float out[kMaxRows * kMaxTiles * kTile];
  const Span own = slipstream::part(share.last - share.first, member, team.size());
  const int last = static_cast<int>(share.first + own.last);
  for (int tile = static_cast<int>(share.first + own.first), tiles; tile < last; tile += tiles) {
    tiles = last - tile < most_tiles ? 1 : most_tiles;
    for (int64_t row = 0, count; row < rows; row += count) {
      count = next_rows(rows - row, most_rows);
      multiply(m, tile, tiles, x, row, static_cast<int>(count), out);
      for (int i = 0; i < count * tiles; ++i) {
        const int output = (tile + i % tiles) * kTile;
        Lanes y = load(out + i * kTile);
        if (!m.bias.empty()) y = add(y, load(m.bias.data() + output));
        write(row + i / tiles, output, y, std::min(kTile, m.outputs - output));
      }
    }
  }
}

template <class Write>
inline void product(const Team& team, int member, const Matrix& m, const Tokens& x, int64_t rows,
                    const Write& write) {
  product(team, member, m, {0, m.tiles()}, x, rows, write);
}

}  // namespace SLIPSTREAM_ISA
