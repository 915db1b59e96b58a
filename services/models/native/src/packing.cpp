// Weights as checkpoints have them, brought into the order in which products read them.
#include <algorithm>
#include <cstring>

#include "blocks.h"
#include "packing.h"

namespace slipstream {

namespace {

// Of a tile's block: its inputs, the bytes of its codes, and of its scales, which are numbers of 16
// bits and, where there are factors, factors of 8.
int elements(Kind kind) { return block_size(kind).elements; }
bool has_nibbles(Kind kind) { return kind != Kind::kQ8_0 && kind != Kind::kQ6_K; }
size_t code_bytes(Kind kind) { return elements(kind) * kTile / (has_nibbles(kind) ? 2 : 1); }
size_t scale_bytes(Kind kind) {
  const int factors = kind == Kind::kQ4_K || kind == Kind::kQ6_K ? kSuper / kPart : 0;
  return kTile * (sizeof(Float16) * (has_nibbles(kind) ? 2 : 1) + factors);
}

}  // namespace

size_t Matrix::tile_bytes() const {
  if (is_coded(kind)) return (code_bytes(kind) + scale_bytes(kind)) * (inputs / elements(kind));
  const size_t pairs = (inputs + 1) / 2;
  return pairs * 2 * kTile * block_size(kind).bytes;
}

void Coded::resize(int64_t rows, int width) {
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
size_t place(uint16_t, size_t k, size_t n) { return k / 2 * 2 * kTile + 2 * n + 1 - k % 2; }
size_t place(float, size_t k, size_t n) { return k * kTile + n; }

template <class T, class Change>
void pack(Matrix& m, const T* values, const Change& change) {
  const size_t inputs = m.inputs;
  for (int tile = 0; tile < m.tiles(); ++tile) {
    T* goal = reinterpret_cast<T*>(m.data + tile * m.tile_bytes());
    const T* first = values + tile * kTile * inputs;
    const int count = std::min(kTile, m.outputs - tile * kTile);
    for (size_t k = 0; k < inputs; ++k) {
      for (int n = 0; n < count; ++n) goal[place(T(), k, n)] = change(first[n * inputs + k]);
    }
  }
}

uint16_t as_factor(uint16_t bits) {
  return static_cast<uint16_t>(weight_factor(to_float(BFloat16{bits})) >> 16);
}
template <class T>
T as_it_is(T value) {
  return value;
}

// The place of an input's code among those of 32, for output n; nibbles share a byte with the input
// 16 further on.
int place_of_code(int input, int n, bool is_nibble) {
  const int within = is_nibble ? input % kPart : input;
  return (within / 4 * kTile + n) * 4 + within % 4;
}

void put_codes(Kind kind, const Unpacked& block, int n, uint8_t* goal) {
  const bool is_nibble = has_nibbles(kind);
  for (int i = 0; i < elements(kind); ++i) {
    const int group = i / kGroup * kGroup * kTile / (is_nibble ? 2 : 1);
    uint8_t& byte = goal[group + place_of_code(i % kGroup, n, is_nibble)];
    byte |= static_cast<uint8_t>(block.codes[i]) << (is_nibble && i % kGroup >= kPart ? 4 : 0);
  }
}

void put_scales(Kind kind, const Unpacked& block, int n, uint8_t* goal) {
  const auto put = [&](Float16 value) {
    std::memcpy(goal + n * sizeof value, &value, sizeof value);
    goal += kTile * sizeof value;
  };
  put(block.scale);
  if (has_nibbles(kind)) put(block.minimum);
  if (kind == Kind::kQ6_K) {
    for (int i = 0; i < kSuper / kPart; ++i) goal[i * kTile + n] = block.factors[i];
  } else if (kind == Kind::kQ4_K) {
    for (int i = 0; i < kSuper / kGroup; ++i) {
      goal[2 * i * kTile + n] = block.factors[i];
      goal[(2 * i + 1) * kTile + n] = block.minimum_factors[i];
    }
  }
}

void pack_blocks(Matrix& m, Kind kind, const uint8_t* values) {
  const BlockSize size = block_size(kind);
  const int blocks = m.inputs / size.elements;
  Unpacked block;
  for (int output = 0; output < m.outputs; ++output) {
    uint8_t* codes = m.data + output / kTile * m.tile_bytes();
    uint8_t* scales = codes + blocks * code_bytes(m.kind);
    for (int at = 0; at < blocks; ++at, values += size.bytes) {
      unpack(kind, values, block);
      put_codes(m.kind, block, output % kTile, codes + at * code_bytes(m.kind));
      put_scales(m.kind, block, output % kTile, scales + at * scale_bytes(m.kind));
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

}  // namespace

Matrix packed(const Weights& weights, Arena& arena) {
  Matrix m;
  m.kind = weights.kind == Kind::kQ4_0 ? Kind::kQ4_1 : weights.kind;
  m.outputs = weights.outputs, m.inputs = weights.inputs;
  m.data = arena.take(m.tile_bytes() * m.tiles());
  switch (m.kind) {
    case Kind::kBFloat16:
      pack(m, static_cast<const uint16_t*>(weights.values), as_factor);
      break;
    case Kind::kNarrowFloat32:
      pack(m, static_cast<const uint16_t*>(weights.values), as_it_is<uint16_t>);
      break;
    case Kind::kFloat32:
      pack(m, static_cast<const float*>(weights.values), as_it_is<float>);
      break;
    default: pack_blocks(m, weights.kind, static_cast<const uint8_t*>(weights.values));
  }
  m.bias = padded(m, weights.bias);
  return m;
}

}  // namespace slipstream
