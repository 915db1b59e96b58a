// The part of the C interface that is for drafts alone: whole chains.
#include "checks.h"
#include "handle.h"

using namespace slipstream;

// Chains behind the first `kept` tokens of a batch, which are the last ones of as many sessions:
// their `length`, and of each up to `stride` positions.
SLIPSTREAM_API int32_t slipstream_follow(void* handle, const Cache* cache, const Batch* batch,
                                         const DecisionModel* decision, ChainState* chains,
                                         int64_t stride, const RankedRows* out) {
  Handle* own = static_cast<Handle*>(handle);
  return guarded([&]() -> int32_t {
    std::lock_guard<std::mutex> lock(own->forward);
    const Model& model = own->model;
    if (!is_complete(model) || !fits_batch(model, *cache, *batch)) return kMisfit;
    if (!fits_chains(model, *cache, *batch, chains, stride, *out)) return kMisfit;
    if (!fits_outputs(model.shape, *batch, batch->kept * stride)) return kMisfit;
    own->kernels->follow(own->model, *cache, *batch, decision, chains, stride, *out);
    return 0;
  });
}
