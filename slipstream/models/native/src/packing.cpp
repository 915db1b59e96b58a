// Weights as checkpoints have them, brought into the order in which products read them, and back.
#include "packing.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "blocks.h"

namespace slipstream {

namespace {

// Of a tile's block: its inputs, the bytes of its codes, and of its scales, which are numbers of 16
// bits and, where there are factors, factors of 8.
int elements(Kind kind) { return block_size(kind).elements; }
size_t code_bytes(Kind kind) {
  return elements(kind) * kTile / (encoding_of(kind).is_nibbles ? 2 : 1);
}
size_t scale_bytes(Kind kind) {
  const Encoding encoding = encoding_of(kind);
  return kTile * (sizeof(Float16) + encoding.factors) * (encoding.has_minimum ? 2 : 1);
}

size_t tile_bytes_of(Kind kind, int inputs) {
  if (is_quantized(kind)) return (code_bytes(kind) + scale_bytes(kind)) * (inputs / elements(kind));
  const size_t pairs = (inputs + 1) / 2;
  return pairs * 2 * kTile * block_size(kind).bytes;
}

}  // namespace

void QuantizedActivations::resize(int64_t rows, int width) {
  const size_t groups = rows * (width / kGroup);
  inputs = width;
  codes.resize(rows * width);
  scales.resize(groups);
  sums.resize(groups);
  offsets.resize(3 * groups);
  words.resize(rows * width);
}

namespace {

// The place in a tile of output n's weight for input k.
size_t place(BFloat16, size_t k, size_t n) { return k / 2 * 2 * kTile + 2 * n + 1 - k % 2; }
template <class T>
size_t place(T, size_t k, size_t n) {
  return k * kTile + n;
}

// A weight as a factor in bfloat16. The sign of a zero is kept, though no product depends on it.
BFloat16 as_factor(BFloat16 value) {
  const bool is_zero = (value.bits & 0x7fff) == 0;
  return is_zero ? value : BFloat16{static_cast<uint16_t>(weight_factor(to_float(value)) >> 16)};
}

// Fills a tile; false where a weight was changed.
template <class T>
bool pack(const Matrix& m, int tile, const T* values) {
  const size_t inputs = m.inputs;
  T* dst = reinterpret_cast<T*>(m.data + tile * m.tile_bytes);
  const T* first = values + tile * kTile * inputs;
  const int count = std::min(kTile, m.outputs - tile * kTile);
  bool is_exact = true;
  for (size_t k = 0; k < inputs; ++k) {
    for (int n = 0; n < count; ++n) {
      T value = first[n * inputs + k];
      if constexpr (std::is_same_v<T, BFloat16>) {
        if (m.kind == Kind::kBFloat16) {
          const BFloat16 factor = as_factor(value);
          is_exact &= factor.bits == value.bits;
          value = factor;
        }
      }
      dst[place(value, k, n)] = value;
    }
  }
  return is_exact;
}

// Nibbles in pairs: bytes with two codes each, of inputs HALF a part of the block from each other.
template <int HALF>
void join_nibbles(int count, const int8_t* __restrict codes, int8_t* __restrict pairs) {
  for (int first = 0; first < count; first += 2 * HALF, codes += 2 * HALF, pairs += HALF) {
    for (int i = 0; i < HALF; ++i) pairs[i] = static_cast<int8_t>(codes[i] | codes[HALF + i] << 4);
  }
}
template <int HALF>
void split_nibbles(int count, const int8_t* __restrict pairs, int8_t* __restrict codes) {
  for (int first = 0; first < count; first += 2 * HALF, codes += 2 * HALF, pairs += HALF) {
    for (int i = 0; i < HALF; ++i) {
      codes[i] = pairs[i] & 15;
      codes[HALF + i] = static_cast<int8_t>(static_cast<uint8_t>(pairs[i]) >> 4);
    }
  }
}
bool has_small_parts(const Encoding& encoding) { return encoding.factors == kSuper / kPart; }

// Moves an output's codes, four at a time, and its numbers between a block and a tile's block:
// `move(tile's, block's, bytes)` goes either way.
template <class Move>
void move_codes(size_t count, int n, uint8_t* tile, int8_t* codes, const Move& move) {
  for (size_t i = 0; i < count; i += 4) move(tile + i * kTile + n * 4, codes + i, size_t{4});
}
template <class Move>
void move_scales(const Encoding& encoding, int n, uint8_t* tile, Unpacked& block,
                 const Move& move) {
  const auto step = [&](auto* number) {
    move(tile + n * sizeof *number, number, sizeof *number);
    tile += kTile * sizeof *number;
  };
  step(&block.scale);
  if (encoding.has_minimum) step(&block.minimum);
  for (int i = 0; i < encoding.factors; ++i) {
    step(block.factors + i);
    if (encoding.has_minimum) step(block.minimum_factors + i);
  }
}

// Fills a tile from blocks of a kind.
void pack_blocks(const Matrix& m, int tile, Kind kind, const uint8_t* values) {
  const Encoding encoding = encoding_of(m.kind);
  const int count = elements(kind), blocks = m.inputs / count, first = tile * kTile;
  const size_t bytes = block_size(kind).bytes, code_size = code_bytes(m.kind);
  uint8_t* codes = m.data + tile * m.tile_bytes;
  uint8_t* scales = codes + blocks * code_size;
  const auto put = [](void* to, const void* from, size_t size) { std::memcpy(to, from, size); };
  Unpacked block;
  for (int at = 0; at < blocks; ++at, codes += code_size, scales += scale_bytes(m.kind)) {
    for (int n = 0; n < kTile && first + n < m.outputs; ++n) {
      unpack(kind, values + (static_cast<size_t>(first + n) * blocks + at) * bytes, block);
      int8_t pairs[kSuper / 2];
      if (encoding.is_nibbles) {
        (has_small_parts(encoding) ? join_nibbles<8> : join_nibbles<16>)(count, block.codes, pairs);
      }
      int8_t* own = encoding.is_nibbles ? pairs : block.codes;
      move_codes(code_size / kTile, n, codes, own, put);
      move_scales(encoding, n, scales, block, put);
    }
  }
}

// One number for each output of the tiles, or none.
std::vector<float> padded(const Matrix& m, const float* values) {
  if (values == nullptr) return {};
  std::vector<float> out(static_cast<size_t>(m.tiles()) * kTile);
  std::copy_n(values, m.outputs, out.begin());
  return out;
}

bool pack_tile(const Matrix& m, int tile, const Weights& weights) {
  std::memset(m.data + tile * m.tile_bytes, 0, m.tile_bytes);
  switch (m.kind) {
    case Kind::kBFloat16:
    case Kind::kNarrowFloat32: return pack(m, tile, static_cast<const BFloat16*>(weights.values));
    case Kind::kFloat16: return pack(m, tile, static_cast<const Float16*>(weights.values));
    case Kind::kFloat32: return pack(m, tile, static_cast<const float*>(weights.values));
    default: pack_blocks(m, tile, weights.kind, static_cast<const uint8_t*>(weights.values));
  }
  return true;
}

template <class T>
void unpack_plain(const Matrix& m, const uint8_t* tile, int n, float* out) {
  const T* values = reinterpret_cast<const T*>(tile);
  for (int k = 0; k < m.inputs; ++k) {
    const T value = values[place(T(), k, n)];
    if constexpr (std::is_same_v<T, float>) {
      out[k] = value;
    } else {
      out[k] = to_float(value);
    }
  }
}

}  // namespace

bool is_whole(const Weights& weights) {
  if (weights.kind < Kind::kBFloat16 || weights.kind > kLastKind) return false;
  if (weights.outputs < 1 || weights.inputs < 1) return false;
  if (weights.values == nullptr || weights.inputs % elements(weights.kind) != 0) return false;
  const size_t bytes = weights.outputs * row_bytes(weights.kind, weights.inputs);
  if (weights.bytes != static_cast<int64_t>(bytes)) return false;
  return weights.bias_size == (weights.bias == nullptr ? 0 : weights.outputs);
}

Matrix packed(const Weights& weights, Arena& arena, Team& team) {
  Matrix m;
  m.kind = weights.kind == Kind::kQ4_0   ? Kind::kQ4_1
           : weights.kind == Kind::kQ5_0 ? Kind::kQ8_0
                                         : weights.kind;
  m.outputs = weights.outputs, m.inputs = weights.inputs;
  m.tile_bytes = tile_bytes_of(m.kind, m.inputs);
  m.data = arena.take(m.tile_bytes * m.tiles());
  std::atomic<bool> is_exact{true};
  team.run([&](int thread) {
    const Span own = part(m.tiles(), thread, team.size());
    for (int64_t tile = own.first; tile < own.last; ++tile) {
      if (!pack_tile(m, static_cast<int>(tile), weights)) is_exact = false;
    }
  });
  m.is_exact = is_exact;
  m.bias = padded(m, weights.bias);
  return m;
}

void dequantise(const Weights& weights, Team& team, bool is_bfloat16, void* out) {
  const size_t inputs = weights.inputs, bytes = row_bytes(weights.kind, weights.inputs);
  std::vector<float> rows(inputs * team.size());
  team.run([&](int thread) {
    float* row = rows.data() + inputs * thread;
    team.each(thread, weights.outputs, [&](int64_t at) {
      float* dst = is_bfloat16 ? row : static_cast<float*>(out) + at * inputs;
      const uint8_t* values = static_cast<const uint8_t*>(weights.values) + at * bytes;
      dequantise(weights.kind, values, weights.inputs, dst);
      if (!is_bfloat16) return;
      std::transform(row, row + inputs, static_cast<BFloat16*>(out) + at * inputs, to_bfloat16);
    });
  });
}

void unpack_row(const Matrix& m, int64_t output, float* out) {
  uint8_t* tile = m.data + output / kTile * m.tile_bytes;
  const int n = static_cast<int>(output % kTile);
  if (m.kind == Kind::kFloat32) return unpack_plain<float>(m, tile, n, out);
  if (m.kind == Kind::kFloat16) return unpack_plain<Float16>(m, tile, n, out);
  if (!is_quantized(m.kind)) return unpack_plain<BFloat16>(m, tile, n, out);
  const Encoding encoding = encoding_of(m.kind);
  const int count = elements(m.kind), blocks = m.inputs / count;
  const size_t code_size = code_bytes(m.kind);
  uint8_t* scales = tile + blocks * code_size;
  const auto take = [](const void* from, void* to, size_t size) { std::memcpy(to, from, size); };
  Unpacked block;
  for (int at = 0; at < blocks; ++at, tile += code_size, scales += scale_bytes(m.kind)) {
    int8_t pairs[kSuper / 2];
    move_codes(code_size / kTile, n, tile, encoding.is_nibbles ? pairs : block.codes, take);
    if (encoding.is_nibbles) {
      (has_small_parts(encoding) ? split_nibbles<8> : split_nibbles<16>)(count, pairs, block.codes);
    }
    move_scales(encoding, n, scales, block, take);
    weights_of(m.kind, block, out + at * count);
  }
}

}  // namespace slipstream
