// Weights as checkpoints have them, brought into the order in which products read them.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "packing.h"

namespace slipstream {

void FreeAligned::operator()(void* p) const { std::free(p); }

Bytes aligned_bytes(size_t size) {
  constexpr size_t kAlignment = 64;
  const size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  void* p = std::aligned_alloc(kAlignment, rounded + kAlignment);
  if (p == nullptr) throw std::bad_alloc();
  std::memset(p, 0, rounded + kAlignment);
  return Bytes(static_cast<uint8_t*>(p));
}

size_t Matrix::tile_bytes() const {
  const size_t pairs = (inputs + 1) / 2;
  return pairs * 2 * kTile * (kind == Kind::kInt8 ? 1 : kind == Kind::kBFloat16 ? 2 : 4);
}

namespace {

// The place in a tile of output n's weight for input k.
size_t place(uint16_t, size_t k, size_t n) { return k / 2 * 2 * kTile + 2 * n + k % 2; }
size_t place(float, size_t k, size_t n) { return k * kTile + n; }
size_t place(int8_t, size_t k, size_t n) { return k * kTile + n; }

template <class T>
void pack(Matrix& m, const T* values) {
  const size_t inputs = m.inputs;
  for (int tile = 0; tile < m.tiles(); ++tile) {
    T* goal = reinterpret_cast<T*>(m.data.get() + tile * m.tile_bytes());
    const T* first = values + tile * kTile * inputs;
    const int count = std::min(kTile, m.outputs - tile * kTile);
    for (size_t k = 0; k < inputs; ++k) {
      for (int n = 0; n < count; ++n) goal[place(T(), k, n)] = first[n * inputs + k];
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

Matrix packed(const Weights& weights) {
  Matrix m;
  m.kind = weights.kind, m.outputs = weights.outputs, m.inputs = weights.inputs;
  m.data = aligned_bytes(m.tile_bytes() * m.tiles());
  switch (m.kind) {
    case Kind::kBFloat16: pack(m, static_cast<const uint16_t*>(weights.values)); break;
    case Kind::kInt8: pack(m, static_cast<const int8_t*>(weights.values)); break;
    case Kind::kFloat32: pack(m, static_cast<const float*>(weights.values)); break;
  }
  m.scales = padded(m, weights.scales), m.bias = padded(m, weights.bias);
  return m;
}

}  // namespace slipstream
