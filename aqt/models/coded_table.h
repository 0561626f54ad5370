#ifndef AQT_MODELS_CODED_TABLE_H_
#define AQT_MODELS_CODED_TABLE_H_

// Tables of which a program looks up rows, kept as a folder stores them. A row is gathered as integers or 8-bit floats,
// and multiplied by its scales:
//   row[i, c] = codes[ids[i], c] * scales[ids[i], c / (features / groups)]
// in f32, rounded once, which are the bits of the row of the multiplied-out table. No copy of the table in floating
// point exists.

#include <cstdint>
#include <map>

#include "absl/status/statusor.h"
#include "aqt/core/aval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/stored/stored_weight.h"

namespace aqt::models {

struct CodedTable {
  Input codes;   // s8 or e4m3fn [entries, features], or s8 [entries, bytes] if packed
  Input scales;  // f32 [entries, groups]
  int64_t features = 0;
  // Integers of up to 4 bits: byte b of a row is 16 * x[b + bytes] + x[b] + 8, with bytes = ceil(features / 2).
  bool packed = false;
};

// By the parameter that holds the table in floating point.
using CodedTables = std::map<Slot, CodedTable>;

// Stores a table, with at least one entry and one feature, in frozen values whose names begin with that of `param`.
CodedTable StoreTable(const Slot& param, const stored::WeightCodes& codes, SlotValues& frozen);

// ids s32 [...] -> f32 [..., features]. Numbers out of range are clamped, as by ops::Take. In a trace.
Value TakeRows(const CodedTable& table, const Value& ids);

// The program with TakeRows in the place of each look-up of these parameters, which must be their only uses. The
// parameters are no inputs any more.
absl::StatusOr<Program> WithCodedTables(const Program& program, const CodedTables& tables);

}  // namespace aqt::models

#endif  // AQT_MODELS_CODED_TABLE_H_
