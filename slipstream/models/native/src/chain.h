// Whole chains of drafts: a forward for each of their tokens, its candidates, and the policy that
// ends them, as in `core/policy/stop.py`.
#pragma once

#include <numeric>

#include "candidates.h"
#include "decoder.h"
#include "outside.h"

namespace SLIPSTREAM_ISA {

using slipstream::ChainState;
using slipstream::DecisionModel;
using slipstream::Policy;

constexpr int kDecisionStats = 4;

// The probability of acceptance by a row's statistics, see `slot_stats` in `models/decision.py`,
// and its state; no number where one of them is none.
inline float decide(const DecisionModel& model, const float* hidden, int size, const float* row,
                    int64_t lag, bool is_sampled) {
  constexpr double kLeast = 1e-6;
  const double most = -std::log(kLeast);
  const double best = row[slipstream::kLogBest], second = row[slipstream::kLogSecond];
  const double odds = best - std::log(std::max(-std::expm1(best), kLeast));
  const float stats[kDecisionStats] = {
      static_cast<float>(std::min(odds, most)), row[slipstream::kEntropy],
      static_cast<float>(std::min(best - second, most)), static_cast<float>(lag)};
  const int64_t column = is_sampled ? 1 : 0, last = model.width + column;
  float logit = 0;
  for (int64_t unit = 0; unit <= last; unit += unit == model.width - 1 ? 1 + column : 1) {
    const float* weights = model.hidden + unit * size;
    const float* others = model.stats + unit * kDecisionStats;
    Lanes total = zero();
    for (int i = 0; i < size; i += kLanes) {
      total = fma(load_partial(hidden + i, size - i), load_partial(weights + i, size - i), total);
    }
    const float own = std::inner_product(stats, stats + kDecisionStats, others,
                                         sum(total) + model.bias[unit]);
    if (unit == last) {
      logit += own;
    } else if (!(own <= 0)) {
      logit += own * model.out[column * model.width + unit];
    }
  }
  return 1.0f / (1.0f + std::exp(-logit));
}

// Acceptance by confidence: see `Calibration`.
inline double calibrated(const ChainState& chain, double confidence) {
  const double place = std::min(confidence, 1.0) * static_cast<double>(chain.num_points - 1);
  const int64_t below = std::min(static_cast<int64_t>(place), chain.num_points - 2);
  const double low = chain.points[below], high = chain.points[below + 1];
  return low + (place - static_cast<double>(below)) * (high - low);
}

// Whether a chain ends with a position. Comparisons with what is no number are false, which leaves
// the limits on length.
inline bool ends_with(ChainState& chain, const float* row) {
  constexpr double kSvipSlope = 0.15;
  const float score = row[slipstream::kScore];
  const double log_best = row[slipstream::kLogBest];
  const int64_t depth = ++chain.length, token = static_cast<int64_t>(row[slipstream::kRowStats]);
  if (log_best != log_best) return true;
  const bool has_score = score == score;
  const double prob = has_score ? score : calibrated(chain, std::exp(log_best));
  chain.path_prob *= prob;
  const double threshold = chain.policy == Policy::kDecision ? chain.fallback : chain.threshold;
  const double entropy = std::max(row[slipstream::kEntropy], 0.0f);
  const bool is_unsure = std::sqrt(kSvipSlope * entropy) > threshold;
  if (depth >= chain.limit || depth >= chain.max_depth) return true;
  if (std::count(chain.ends, chain.ends + chain.num_ends, token) > 0) return true;
  if (chain.path_prob < chain.min_path_prob) return true;
  if (chain.policy == Policy::kCost) return chain.path_prob * prob < chain.threshold;
  if (chain.policy == Policy::kDecision && has_score) return score <= chain.threshold;
  return chain.policy != Policy::kFixed && is_unsure;
}

// The newest tokens of chains: one of each session that goes on, behind those of `first`, where the
// first rows are the sessions' last ones.
class NewestTokens {
 public:
  NewestTokens(const Batch& first, const Shape& shape)
      : first_(first), num_cross_(shape.num_cross), width_(shape.has_features ? shape.hidden : 0) {}

  void clear() { rows_ = {}; }
  int64_t count() const { return static_cast<int64_t>(rows_.tokens.size()); }

  // A token, and the feature that it reads where the model has them.
  void add(int64_t session, int64_t depth, int64_t token, const float* feature) {
    const int64_t place = first_.num_in_table[session] + depth - 1;
    rows_.tokens.push_back(token);
    rows_.positions.push_back(first_.positions[session] + depth);
    rows_.slots.push_back(first_.block_tables[session][place]);
    rows_.tables.push_back(first_.block_tables[session]);
    rows_.seen.push_back(place + 1);
    rows_.sizes.push_back(first_.block_table_sizes[session]);
    rows_.read.push_back(0);
    rows_.features.insert(rows_.features.end(), feature, feature + width_);
    if (first_.cross == nullptr) return;
    const CrossKv* own = first_.cross + session * num_cross_;
    rows_.cross.insert(rows_.cross.end(), own, own + num_cross_);
    rows_.read.back() = num_cross_ > 0 ? own->positions : 0;
  }

  Batch batch() {
    rows_.ancestors.assign(count() + 1, 0);
    return {count(),           count(),
            rows_.tokens.data(), rows_.positions.data(),
            rows_.slots.data(), rows_.tables.data(),
            rows_.seen.data(), rows_.ancestors.data(),
            rows_.ancestors.data(), rows_.read.data(),
            first_.cross == nullptr ? nullptr : rows_.cross.data(), rows_.sizes.data(),
            0, rows_.features.data()};
  }

 private:
  struct Rows {
    std::vector<int64_t> tokens, positions, slots, seen, sizes, read, ancestors;
    std::vector<const int64_t*> tables;
    std::vector<CrossKv> cross;
    std::vector<float> features;
  };
  const Batch& first_;
  const int num_cross_, width_;
  Rows rows_;
};

// Candidates of the states of one token of each of `sessions`, at `depth` of their chains, whose
// positions are `stride` rows of `out` each.
inline void rank_states(Model& model, const std::vector<int64_t>& sessions, int64_t depth,
                        const ChainState* chains, int64_t stride, const RankedRows& out) {
  slipstream::Buffers& own = model.buffers;
  const int64_t rows = static_cast<int64_t>(sessions.size()), size = model.head.outputs;
  int64_t most = 0;
  for (const int64_t session : sessions) most = std::max(most, chains[session].num_others);
  most += 2 * out.num_noisy;
  const int64_t width = size + most, room = rank_room(size, most) + width;
  own.logits.resize(rows * size);
  own.ranked.resize(rows * room);
  multiply(*model.team, model.head, own.hidden.data(), rows, own.logits.data());
  const auto rank_one = [&](int64_t row) {
    const ChainState& chain = chains[sessions[row]];
    float *values = own.ranked.data() + row * room, *logits = values + rank_room(size, most);
    const std::vector<int64_t> others = outside_tokens(model, chain, depth, out, most);
    std::copy_n(own.logits.data() + row * size, size, logits);
    score_rows(model, others, own.hidden.data() + row * model.shape.hidden, logits + size);
    Ranking by{chain.factor, chain.is_sampled != 0, {}};
    if (by.is_sampled) by.noise = draw_noise(chain.seed, chain.position + depth - 1);
    rank_row(logits, size, others, by, out, out.row(sessions[row] * stride + depth - 1), values);
  };
  if (rows == 1) return rank_one(0);  // sooner than the other threads are there
  model.team->run([&](int thread) { model.team->each(thread, rows, rank_one); });
}

// Follows the best candidates behind the first `kept` tokens of a batch, the last ones of as many
// sessions, until each of their chains has ended. A chain has up to `stride` positions, rows of
// `out`, whose scores are those of the decision model or no numbers; features of each go to the
// batch's `outputs`.
inline void follow(Model& model, const Cache& cache, const Batch& batch,
                   const DecisionModel* decision, ChainState* chains, int64_t stride,
                   const RankedRows& out) {
  const int hidden = model.shape.hidden, width = model.shape.has_features ? hidden : 0;
  slipstream::Lines<float>&states = model.buffers.hidden, &features = model.buffers.features;
  std::vector<int64_t> live(batch.kept);
  std::iota(live.begin(), live.end(), 0);
  NewestTokens newest(batch, model.shape);
  for (int64_t depth = 1; !live.empty(); ++depth) {
    states.resize(live.size() * hidden);
    features.resize(live.size() * width);
    Batch now = depth == 1 ? batch : newest.batch();
    now.outputs = features.data();
    forward(model, cache, now, states.data());
    rank_states(model, live, depth, chains, stride, out);
    std::vector<int64_t> others;
    newest.clear();
    for (size_t i = 0; i < live.size(); ++i) {
      ChainState& chain = chains[live[i]];
      const int64_t place = live[i] * stride + depth - 1;
      float* row = out.row(place);
      const float* feature = features.data() + i * width;
      if (width > 0) std::copy_n(feature, width, batch.outputs + place * width);
      if (decision != nullptr && chain.is_scored) {
        row[slipstream::kScore] = decide(*decision, states.data() + i * hidden, hidden, row,
                                         chain.lag + depth - 1, chain.is_sampled != 0);
      }
      if (ends_with(chain, row)) continue;
      others.push_back(live[i]);
      newest.add(live[i], depth, static_cast<int64_t>(row[slipstream::kRowStats]), feature);
    }
    live.swap(others);
  }
}

}  // namespace SLIPSTREAM_ISA
