#include "aqt/models/coded_table.h"

#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/ceil_div.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/trace.h"

namespace aqt::models {
namespace {

// The bytes of CodedTable::packed. They fit s8: 16 * -8 - 8 + 8 to 16 * 7 + 7 + 8.
Array Packed(const Array& values) {
  const int64_t rows = values.shape()[0], features = values.shape()[1], bytes = CeilDiv(features, int64_t{2});
  ArrayBuilder packed = ArrayBuilder::ForOverwrite({DType::kS8, {rows, bytes}});
  const int8_t* from = values.View<int8_t>().data();
  int8_t* to = packed.Mutable<int8_t>().data();
  for (int64_t r = 0; r < rows; ++r, from += features, to += bytes) {
    for (int64_t b = 0; b < bytes; ++b) {
      const int high = b + bytes < features ? from[b + bytes] : 0;
      to[b] = static_cast<int8_t>(16 * high + from[b] + 8);
    }
  }
  return std::move(packed).Build();
}

// The integers of packed rows [..., bytes], in f32: exact.
Value Unpacked(const Value& rows, int64_t features) {
  const Value bytes = ops::Cast(rows, DType::kF32);
  const Value high = ops::Floor(bytes * (1.0 / 16));
  const Value low = (bytes - 8.0) - high * 16.0;
  const int64_t last = rows.rank() - 1;
  const Value both = ops::Concatenate({low, high}, last);
  if (both.dim(last) == features) return both;
  PerAxis limit(both.shape().begin(), both.shape().end());
  limit[last] = features;
  return ops::Slice(both, PerAxis(limit.size(), 0), limit);
}

}  // namespace

CodedTable StoreTable(const Slot& param, const stored::WeightCodes& codes, SlotValues& frozen) {
  CodedTable table;
  table.features = codes.values.shape()[1];
  table.packed = codes.values.dtype() == DType::kS8 && codes.bits <= 4;
  const Array values = table.packed ? Packed(codes.values) : codes.values;
  table.codes = {{SlotKind::kFrozen, absl::StrCat(param.path, "/value")}, values.aval()};
  table.scales = {{SlotKind::kFrozen, absl::StrCat(param.path, "/scale")}, codes.scales.aval()};
  frozen[table.codes.slot] = values;
  frozen[table.scales.slot] = codes.scales;
  return table;
}

Value TakeRows(const CodedTable& table, const Value& ids) {
  const Value codes = ops::Take(InputSlot(table.codes.slot, table.codes.aval), ids);
  const Value scales = ops::Take(InputSlot(table.scales.slot, table.scales.aval), ids);
  const Value values = table.packed ? Unpacked(codes, table.features) : ops::Cast(codes, DType::kF32);
  const int64_t groups = table.scales.aval.shape[1];
  if (groups == 1) return values * scales;
  Shape in_groups = ids.shape(), of_scales = ids.shape(), out = ids.shape();
  in_groups.push_back(groups);
  in_groups.push_back(table.features / groups);
  of_scales.push_back(groups);
  of_scales.push_back(1);
  out.push_back(table.features);
  return ops::Reshape(ops::Reshape(values, in_groups) * ops::Reshape(scales, of_scales), out);
}

absl::StatusOr<Program> WithCodedTables(const Program& program, const CodedTables& tables) {
  std::vector<const CodedTable*> table_of(program.vars.size());
  for (const Program::Port& input : program.inputs) {
    if (const auto it = tables.find(input.slot); it != tables.end()) table_of[input.var] = &it->second;
  }
  absl::StatusOr<Program> rewritten = Rewrite(
      program, [&](const Equation& eqn, absl::Span<const Value> operands) -> absl::StatusOr<std::vector<Value>> {
        if (!std::holds_alternative<TakeOp>(eqn.op) || table_of[eqn.in[0]] == nullptr) {
          return BindAgain(eqn, operands);
        }
        return std::vector<Value>{TakeRows(*table_of[eqn.in[0]], operands[1])};
      });
  if (!rewritten.ok()) return rewritten;
  std::erase_if(rewritten->inputs, [&](const Program::Port& input) { return tables.contains(input.slot); });
  return rewritten;
}

}  // namespace aqt::models
