// What tokens see: slots in the order of their positions.
#pragma once

#include <cstdint>

namespace SLIPSTREAM_ISA {

// What a token sees of one key head: the first `in_table` slots of a table, or of all where there
// is none, and then those of a line; of these positions not the first `hidden` ones.
template <class T>
struct Seen {
  const T* keys;
  const T* values;
  const int64_t* table;
  int64_t in_table;
  const int64_t* line;
  int64_t in_line;
  int64_t hidden = 0;

  int64_t count() const { return in_table + in_line; }
  bool shares_table(const Seen& other) const {
    return keys == other.keys && values == other.values && table == other.table;
  }
};

}  // namespace SLIPSTREAM_ISA
