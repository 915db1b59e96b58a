// What tokens see: slots in the order of their positions.
#pragma once

#include <cstdint>

namespace SLIPSTREAM_ISA {

// What a token sees of one key head: the first `num_in_table` slots of a block_table, or of all
// where there is none, and then those of a ancestors; of these positions not the first `hidden`
// ones.
template <class T>
struct KvSpan {
  const T* keys;
  const T* values;
  const int64_t* block_table;
  int64_t num_in_table;
  const int64_t* ancestors;
  int64_t num_ancestors;
  int64_t hidden = 0;

  int64_t count() const { return num_in_table + num_ancestors; }
  bool shares_table(const KvSpan& other) const {
    return keys == other.keys && values == other.values && block_table == other.block_table;
  }
};

}  // namespace SLIPSTREAM_ISA
