#include "roofline.h"

#include <algorithm>
#include <chrono>

namespace slipstream {
namespace {

constexpr int kTimes = 16;
constexpr double kLeastSeconds = 5e-4;

// The seconds that the team takes at best.
template <class Work>
double seconds(Team& team, int times, const Work& work) {
  double best = 1e9;
  for (int i = 0; i < times; ++i) {
    const auto start = std::chrono::steady_clock::now();
    team.run(work);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count());
  }
  return best;
}

// Multiply-adds of the team in a second.
double rate(Team& team, double (*loop)(int64_t, float*)) {
  double macs = 0, taken = 0;
  for (int64_t steps = 1; taken < kLeastSeconds; steps *= 2) {
    const auto work = [&](int thread) {
      float sink[4];
      const double own = loop(steps, sink);
      if (thread == 0) macs = own;
    };
    taken = seconds(team, 1, work);
    if (taken >= kLeastSeconds) taken = seconds(team, kTimes, work);
  }
  return macs * team.size() / taken;
}

template <class Each>
void each_matrix(const Model& model, const Each& each) {
  for (const Layer& layer : model.layers) {
    for (const Block& block : layer.blocks) {
      for (const Matrix& m : block.into) each(m);
      each(block.out);
    }
  }
  each(model.head);
}

void read_weights(const Model& model, const Kernels& kernels, int thread) {
  each_matrix(model, [&](const Matrix& m) {
    const Span own = part(m.tiles(), thread, model.team->size());
    float sink[4];
    kernels.peaks.read_bytes(m.data + own.first * m.tile_bytes,
                             (own.last - own.first) * m.tile_bytes, sink);
  });
}

}  // namespace

Roofline roofline(const Model& model, const Kernels& kernels) {
  double macs[2] = {}, bytes = 0;  // in float32, and of integers
  each_matrix(model, [&](const Matrix& m) {
    macs[is_quantized(m.kind)] += static_cast<double>(m.outputs) * m.inputs;
    bytes += static_cast<double>(m.tile_bytes) * m.tiles();
  });
  Team& team = *model.team;
  const Peaks& peaks = kernels.peaks;
  double busy = 0;
  if (macs[0] > 0) busy += macs[0] / rate(team, peaks.multiply_floats);
  if (macs[1] > 0) busy += macs[1] / rate(team, peaks.multiply_codes);
  const double reading =
      seconds(team, kTimes, [&](int thread) { read_weights(model, kernels, thread); });
  return {macs[0] + macs[1], bytes, (macs[0] + macs[1]) / busy, bytes / reading};
}

}  // namespace slipstream
