// Products of few tokens with packed weights. Lanes are outputs: each output is one chain of fused
// multiply-adds over the inputs in order, so its bits depend on its token and its weights alone,
// not on how many tokens or tiles are computed side by side, on threads or on the instruction set.
#pragma once

#include <algorithm>
#include <utility>

#include "quantized_matmul.h"
#include "lanes.h"
#include "model.h"

namespace SLIPSTREAM_ISA {

using slipstream::kTile;
using slipstream::Span;
using slipstream::Team;
using slipstream::Tokens;

static_assert(kTile == kLanes);

// Tiles that a thread goes through at once for one part of the tokens after the other: they stay in
// the first cache.
constexpr int kTilesAtOnce = 4;

// Tiles that a thread takes at once: few enough that none waits for long, enough to be worth it, as
// a thread that takes more first waits until what it has written is there.
inline int64_t tiles_to_take(const Matrix& m) {
  constexpr int64_t kBytes = 1 << 16;
  return std::max<int64_t>(kTilesAtOnce, kBytes / static_cast<int64_t>(m.tile_bytes));
}

template <int ROWS, int TILES>
using Sums = Lanes[ROWS][TILES];

// How products read weights that are in no blocks.
struct Numbers {};
// Weights of type T; tokens as they are.
template <class T>
struct FloatTokens : Numbers {
  using Weight = T;
  static constexpr size_t kPairStep = 2;  // numbers that a token has for two inputs
  static const float* tokens(const Tokens& x) { return x.values; }
};
// Weights in bfloat16; tokens rounded to it.
struct Bf16Tokens : Numbers {
  using Weight = BFloat16;
#if defined(SLIPSTREAM_HAS_PAIRS)
  static constexpr size_t kPairStep = 1;
#else
  static constexpr size_t kPairStep = 2;
#endif
  static const uint32_t* tokens(const Tokens& x) { return x.quantized->words.data(); }
};

inline Lanes all_of(float number) { return all(number); }
inline Lanes all_of(uint32_t word) {
  float number;
  std::memcpy(&number, &word, sizeof number);
  return all(number);
}

// Two inputs in bfloat16 lie as the instruction for pairs takes them: the later one comes first.
template <class T>
inline Lanes first_input(const T* p) {
  return load_first(p);
}
template <class T>
inline Lanes second_input(const T* p) {
  return load_second(p);
}
inline Lanes first_input(const BFloat16* p) { return load_second(p); }
inline Lanes second_input(const BFloat16* p) { return load_first(p); }

// The same place, of whose contents the compiler knows nothing.
template <class T>
inline const T* unknown(const T* p) {
  asm("" : "+r"(p));
  return p;
}

// Adds products of two inputs, or of the one that is `left`. `weights` and `x`, tokens `inputs`
// elements from each other, are where those of the first are. There are not registers enough for
// the operations of both inputs together: the branch keeps GCC from mixing them, `unknown` from
// holding on to pairs of weights.
template <int ROWS, int TILES, class T, class X>
inline void add_pair(const T* weights, size_t stride, const X* x, size_t inputs, size_t left,
                     Sums<ROWS, TILES>& sums) {
  const auto add_input = [&](const X* own, const T* from, auto load_weights) {
    Lanes w[TILES];
    unrolled<TILES>([&](auto t) { w[t] = load_weights(from + t * stride); });
    unrolled<ROWS>([&](auto r) {
      const Lanes value = all_of(own[r * inputs]);
      unrolled<TILES>([&](auto t) { sums[r][t] = fma(w[t], value, sums[r][t]); });
    });
  };
  add_input(x, weights, [](const T* p) { return first_input(p); });
  if (left > 1) add_input(x + 1, unknown(weights), [](const T* p) { return second_input(p); });
}

#if defined(SLIPSTREAM_HAS_PAIRS)
template <int ROWS, int TILES>
inline void add_pair(const BFloat16* weights, size_t stride, const uint32_t* x, size_t inputs,
                     size_t, Sums<ROWS, TILES>& sums) {
  Pairs w[TILES];
  unrolled<TILES>([&](auto t) { w[t] = load_pairs(weights + t * stride); });
  unrolled<ROWS>([&](auto r) {
    const Pairs pair = all_pairs(x[r * inputs]);
    unrolled<TILES>([&](auto t) { sums[r][t] = add_products(sums[r][t], w[t], pair); });
  });
}
#endif

// Outputs [ROWS, TILES * 16], without the bias.
template <class Way, int ROWS, int TILES>
void multiply_tiles(const Work& work, float* out) {
  using T = typename Way::Weight;
  const int64_t inputs = work.matrix.inputs;
  const size_t stride = work.matrix.tile_bytes / sizeof(T);
  const T* weights = reinterpret_cast<const T*>(work.matrix.data) + work.tile * stride;
  const auto* x = Way::tokens(work.tokens) + work.row * inputs;
  Sums<ROWS, TILES> sums;
  unrolled<ROWS * TILES>([&](auto i) { sums[i / TILES][i % TILES] = zero(); });
  int turn = work.turn;
  for (int64_t left = inputs; left > 0; left -= 2) {
    if (--turn < 0) {
      for (int t = 0; t < TILES; ++t) {
        const T* now = weights + t * stride;
        fetch<sizeof(T) * 2 * kTile>(reinterpret_cast<const uint8_t*>(now) + work.ahead);
      }
      turn = work.turns - 1;
    }
    add_pair<ROWS, TILES>(weights, stride, x, inputs, left, sums);
    weights += 2 * kTile, x += Way::kPairStep;
  }
  unrolled<ROWS * TILES>([&](auto i) { store(out + i * kTile, sums[i / TILES][i % TILES]); });
}

using Kernel = void (*)(const Work&, float* out);

// The kernels for 1 token, 2 and so on.
template <class T, int TILES, int... ROWS>
inline Kernel kernel_for(int rows, std::integer_sequence<int, ROWS...>) {
  if constexpr (std::is_base_of_v<Numbers, T>) {
    static constexpr Kernel kernels[] = {multiply_tiles<T, ROWS + 1, TILES>...};
    return kernels[rows - 1];
  } else {
    static constexpr Kernel kernels[] = {multiply_codes<T, ROWS + 1, TILES>...};
    return kernels[rows - 1];
  }
}

template <class T, int MAX_ROWS, int MAX_TILES>
inline Kernel kernel_for(int rows, int tiles) {
  constexpr auto counts = std::make_integer_sequence<int, MAX_ROWS>();
  constexpr int kTiled = MAX_TILES > 1 ? std::min(MAX_ROWS, kMaxTiledRows) : MAX_ROWS;
  if (tiles == 1) return kernel_for<T, 1>(rows, counts);
  return kernel_for<T, MAX_TILES>(rows, std::make_integer_sequence<int, kTiled>());
}

// More rows than go together are in groups of which each has that many or one less.
template <class Format>
inline Kernel quantized_kernel(int rows, int tiles) {
  const int groups = (rows + kMaxQuantizedRows - 1) / kMaxQuantizedRows;
  rows = (rows + groups - 1) / groups;
  return kernel_for<Format, kMaxQuantizedRows, kMaxQuantizedTiles>(rows, tiles);
}

inline Kernel kernel_for(Kind kind, int rows, int tiles) {
  switch (kind) {
    case Kind::kBFloat16: return kernel_for<Bf16Tokens, kMaxRows, kMaxTiles>(rows, tiles);
    case Kind::kFloat32: return kernel_for<FloatTokens<float>, kMaxRows, kMaxTiles>(rows, tiles);
    case Kind::kNarrowFloat32:
      return kernel_for<FloatTokens<BFloat16>, kMaxRows, kMaxTiles>(rows, tiles);
    case Kind::kFloat16: return kernel_for<FloatTokens<Float16>, kMaxRows, kMaxTiles>(rows, tiles);
    case Kind::kQ5_1: return quantized_kernel<Groups<Bytes, Float16, true>>(rows, tiles);
    case Kind::kQ8_0: return quantized_kernel<Groups<Bytes, Float16, false>>(rows, tiles);
    case Kind::kQ2_K: return quantized_kernel<Supers<Nibbles, 2, true>>(rows, tiles);
    case Kind::kQ3_K: return quantized_kernel<Supers<Named<kThreeBits>, 2, false>>(rows, tiles);
    case Kind::kQ4_K: return quantized_kernel<Supers<Nibbles, 1, true>>(rows, tiles);
    case Kind::kQ5_K: return quantized_kernel<Supers<Bytes, 1, true>>(rows, tiles);
    case Kind::kQ6_K: return quantized_kernel<Supers<Bytes, 2, false>>(rows, tiles);
    case Kind::kIQ4_NL:
      return quantized_kernel<Groups<Named<kUneven>, Float16, false>>(rows, tiles);
    case Kind::kIQ4_XS: return quantized_kernel<Supers<Named<kUneven>, 1, false>>(rows, tiles);
    case Kind::kMXFP4:
      return quantized_kernel<Groups<Named<kFloat4>, BFloat16, false>>(rows, tiles);
    default: return quantized_kernel<Groups<Nibbles, Float16, true>>(rows, tiles);
  }
}

// How many times some tiles are gone through for so many tokens: those that do not go together go
// in parts for which there are registers enough.
inline int num_turns(Kind kind, int64_t rows) {
  const int groups = slipstream::block_size(kind).elements == kSuper ? 1 : kMaxRowGroups;
  const int most = is_quantized(kind) ? groups * kMaxQuantizedRows : kMaxRows;
  const int good = is_quantized(kind) ? groups * kGoodQuantizedRows : kMaxRows;
  return rows <= most ? 1 : static_cast<int>((rows + good - 1) / good);
}

// Whether the last turn is of few tokens and several tiles: turns of equal size would have too few
// sums to keep the processor busy.
inline bool has_tiled_turn(Kind kind, int64_t rows, int turns) {
  if (is_quantized(kind) || kMaxTiledRows == kMaxRows || turns == 1) return false;
  return rows / turns < kMaxRows - 1 && rows - kMaxTiledRows <= kMaxRows * (turns - 1);
}
inline Span turn_rows(int64_t rows, int turn, int turns, bool has_tiled) {
  if (!has_tiled) return slipstream::part(rows, turn, turns);
  if (turn == turns - 1) return {rows - kMaxTiledRows, rows};
  return slipstream::part(rows - kMaxTiledRows, turn, turns - 1);
}

// Some tokens' outputs of some tiles.
template <class Write>
inline void multiply(const Work& work, int tiles, const Write& write) {
  constexpr int kMaxQuantized = kMaxRowGroups * kMaxQuantizedRows * kMaxQuantizedTiles;
  alignas(slipstream::kLine) float out[std::max(kMaxRows * kMaxTiles, kMaxQuantized) * kTile];
  const Matrix& m = work.matrix;
  kernel_for(m.kind, work.rows, tiles)(work, out);
  const float* next = out;
  for (int r = 0; r < work.rows; ++r) {
    for (int t = 0; t < tiles; ++t, next += kTile) {
      const int output = (work.tile + t) * kTile;
      Lanes y = load(next);
      if (!m.bias.empty()) y = add(y, load(m.bias.data() + output));
      write(work.row + r, output, y, std::min(kTile, m.outputs - output));
    }
  }
}

// One thread's share of the outputs of `share`, which counts tiles. `write(row, output, lanes,
// count)` takes the outputs of a token from `output` on, of which `count` exist.
template <class Write>
inline void matmul(Team& team, int thread, const Matrix& m, Span share, const Tokens& x,
                   int64_t rows, const Write& write) {
  if (rows == 0) return;
  const int turns = num_turns(m.kind, rows);
  const bool has_tiled = has_tiled_turn(m.kind, rows, turns);
  // One token waits for memory, which is fastest where there is one stream.
  const bool is_single = rows == 1 || (kMaxTiledRows < kMaxRows && !has_tiled);
  const int most_tiles = is_quantized(m.kind) ? kMaxQuantizedTiles : is_single ? 1 : kMaxTiles;
  const auto compute = [&](Span tiles, size_t ahead) {
    for (int turn = 0; turn < turns; ++turn) {
      const Span some = turn_rows(rows, turn, turns, has_tiled);
      const int64_t most = has_tiled && turn < turns - 1 ? 1 : most_tiles;
      for (int64_t tile = tiles.first, count; tile < tiles.last; tile += count) {
        count = tiles.last - tile < most ? 1 : most;
        const int first = static_cast<int>(share.first + tile);
        const Work work{m, x, first, static_cast<int>(some.last - some.first), some.first, ahead,
                        turn, turns};
        multiply(work, static_cast<int>(count), write);
      }
    }
  };
  // Tokens of a turn stay in the first cache for several tiles, and their outputs are neighbours.
  const int64_t together = turns > 1 ? kTilesAtOnce : most_tiles;
  const int64_t most = tiles_to_take(m);
  team.share(thread, share.last - share.first, most, [&](Span some, int64_t end) {
    for (int64_t tile = some.first, count; tile < some.last; tile += count) {
      count = std::min(together, some.last - tile);
      compute({tile, tile + count}, tile + count < end ? count * m.tile_bytes : 0);
    }
  });
}

template <class Write>
inline void matmul(Team& team, int thread, const Matrix& m, const Tokens& x, int64_t rows,
                   const Write& write) {
  matmul(team, thread, m, {0, m.tiles()}, x, rows, write);
}

}  // namespace SLIPSTREAM_ISA
