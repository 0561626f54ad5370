#include "aqt/nn/weights/weights_map.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/value.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "re2/re2.h"

namespace aqt::nn {
namespace {

constexpr int kGroups = 10;  // \0 .. \9

std::string Describe(const io::TensorInfo& tensor) {
  return absl::StrCat("tensor \"", tensor.name, "\" ", io::ToString(tensor.dtype), tensor.shape.ToString());
}

std::string Describe(const Slot& slot, const Aval& aval) { return absl::StrCat(slot.ToString(), " ", aval.ToString()); }

struct Plan {
  std::vector<WeightPlace> places;
  WeightsReport report;
};

absl::StatusOr<std::unique_ptr<RE2>> Compile(const std::string& text, absl::string_view what) {
  auto regex = std::make_unique<RE2>(text, RE2::Quiet);
  if (regex->ok()) return regex;
  return absl::InvalidArgumentError(
      absl::StrCat("weights map: ", what, " \"", text, "\" is not a valid regular expression: ", regex->error()));
}

std::string RuleName(const WeightsMap& map, const WeightRule& rule) {
  return absl::StrCat("rule ", &rule - map.rules.data() + 1, ", tensor \"", rule.tensor, "\"");
}

// The regular expressions of the rules.
absl::StatusOr<std::vector<std::unique_ptr<RE2>>> CompileRules(const WeightsMap& map) {
  std::vector<std::unique_ptr<RE2>> regexes;
  for (const WeightRule& rule : map.rules) {
    const std::string name = RuleName(map, rule);
    AQT_ASSIGN_OR_RETURN(std::unique_ptr<RE2> regex, Compile(rule.tensor, absl::StrCat(name, ": tensor")));
    if (rule.slot.has_value()) {
      if (rule.slot->kind != SlotKind::kParam && rule.slot->kind != SlotKind::kStat) {
        return absl::InvalidArgumentError(
            absl::StrCat("weights map: ", name, ": ", rule.slot->ToString(), " is neither a param nor a stat"));
      }
      if (std::string error; !regex->CheckRewriteString(rule.slot->path, &error)) {
        return absl::InvalidArgumentError(
            absl::StrCat("weights map: ", name, ": path \"", rule.slot->path, "\": ", error));
      }
    }
    regexes.push_back(std::move(regex));
  }
  return regexes;
}

bool IsPermutation(const Axes& axes, int64_t rank) {
  Axes sorted = axes;
  std::sort(sorted.begin(), sorted.end());
  Axes all(static_cast<size_t>(rank));
  std::iota(all.begin(), all.end(), 0);
  return sorted == all;
}

// Fills in the shapes of the place. Returns the mismatch; "" if it fits.
std::string Fit(WeightPlace& place) {
  const WeightRule& rule = *place.rule;
  place.sliced = place.tensor->shape;
  if (rule.slice.has_value()) {
    const WeightSlice& slice = *rule.slice;
    if (slice.axis < 0 || slice.axis >= place.sliced.rank()) {
      return absl::StrCat("the slice is of axis ", slice.axis, ", which the tensor does not have");
    }
    const int64_t extent = place.sliced[slice.axis], parts = slice.parts == 0 ? extent : slice.parts;
    if (parts < 0 || (parts > 0 && extent % parts != 0)) {
      return absl::StrCat("the slice has ", parts, " parts, which do not divide ", extent);
    }
    if (slice.begin < 0 || slice.begin >= slice.end || slice.end > parts) {
      return absl::StrCat("the slice is from ", slice.begin, " to ", slice.end, ", expected a part of 0 to ", parts);
    }
    place.begin = slice.begin * (extent / parts);
    place.end = slice.end * (extent / parts);
    place.sliced[slice.axis] = place.end - place.begin;
  }
  place.permuted = place.sliced;
  if (!rule.transpose.empty()) {
    if (!IsPermutation(rule.transpose, place.sliced.rank())) {
      return absl::StrCat("transpose [", absl::StrJoin(rule.transpose, ", "), "] is not a permutation of ",
                          place.sliced.rank(), " axes");
    }
    for (int64_t i = 0; i < place.sliced.rank(); ++i) place.permuted[i] = place.sliced[rule.transpose[i]];
  }
  const std::string have =
      rule.slice.has_value() || !rule.transpose.empty() ? absl::StrCat(", here ", place.permuted.ToString(), ",") : "";
  if (rule.reshape ? place.permuted.num_elements() != place.aval.shape.num_elements()
                   : place.permuted != place.aval.shape) {
    return absl::StrCat("the shapes", have, " differ; ",
                        rule.reshape ? "reshape needs as many elements" : "see slice, transpose and reshape");
  }
  const std::optional<DType> dtype = io::ToDType(place.tensor->dtype);
  if (!dtype.has_value()) return "this dtype cannot be read; ignore the tensor";
  const bool widens = IsFloat(*dtype) && IsFloat(place.aval.dtype) && BitWidth(*dtype) < BitWidth(place.aval.dtype);
  if (*dtype != place.aval.dtype && !widens && !rule.cast) return "the dtypes differ; set cast to round";
  return "";
}

absl::StatusOr<Plan> MakePlan(const WeightsMap& map, const io::TensorSource& source, const Program& program) {
  AQT_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<RE2>> regexes, CompileRules(map));
  std::vector<std::unique_ptr<RE2>> missing;
  for (const std::string& text : map.missing) {
    AQT_ASSIGN_OR_RETURN(std::unique_ptr<RE2> regex, Compile(text, "missing"));
    missing.push_back(std::move(regex));
  }
  std::map<Slot, Aval> slots;
  for (const Program::Port& port : program.inputs) slots.emplace(port.slot, program.aval(port.var));

  Plan plan;
  WeightsReport& report = plan.report;
  std::vector<bool> used(map.rules.size());
  std::map<Slot, const io::TensorInfo*> given;
  for (const io::TensorInfo& tensor : source.tensors()) {
    bool is_left_over = true;
    for (size_t i = 0; i < map.rules.size(); ++i) {
      const WeightRule& rule = map.rules[i];
      re2::StringPiece groups[kGroups];
      const int num_groups = std::min(kGroups, regexes[i]->NumberOfCapturingGroups() + 1);
      if (!regexes[i]->Match(tensor.name, 0, tensor.name.size(), RE2::ANCHOR_BOTH, groups, num_groups)) continue;
      used[i] = true;
      is_left_over = false;
      if (!rule.slot.has_value()) continue;
      WeightPlace place = {&tensor, &rule, {rule.slot->kind, ""}, {}, 0, 0, {}, {}};
      regexes[i]->Rewrite(&place.slot.path, rule.slot->path, groups, num_groups);
      const auto slot = slots.find(place.slot);
      if (slot == slots.end()) {
        report.wrong.push_back(
            absl::StrCat(Describe(tensor), " -> ", place.slot.ToString(), ": the program has no such input"));
        continue;
      }
      place.aval = slot->second;
      const std::string both = absl::StrCat(Describe(tensor), " -> ", Describe(place.slot, place.aval), ": ");
      if (const auto [other, is_first] = given.emplace(place.slot, &tensor); !is_first) {
        report.wrong.push_back(absl::StrCat(both, Describe(*other->second), " is for the same"));
        continue;
      }
      if (const std::string problem = Fit(place); !problem.empty()) {
        report.wrong.push_back(both + problem);
        continue;
      }
      plan.places.push_back(std::move(place));
    }
    if (is_left_over) report.left_over.push_back(Describe(tensor));
  }
  std::vector<bool> is_missing(missing.size());
  for (const int position : program.InputsOfKind(SlotKind::kParam)) {
    const Slot& slot = program.inputs[position].slot;
    bool may_be_missing = false;
    for (size_t i = 0; i < missing.size(); ++i) {
      if (!RE2::FullMatch(slot.path, *missing[i])) continue;
      may_be_missing = is_missing[i] = true;
    }
    if (!may_be_missing && !given.contains(slot)) report.missing.push_back(Describe(slot, slots.at(slot)));
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) report.unused.push_back(RuleName(map, map.rules[i]));
  }
  for (size_t i = 0; i < missing.size(); ++i) {
    if (!is_missing[i]) report.unused.push_back(absl::StrCat("missing \"", map.missing[i], "\""));
  }
  return plan;
}

// The elements [begin, end) of an axis.
Value SliceOfAxis(const Value& x, int64_t axis, int64_t begin, int64_t end) {
  PerAxis start(static_cast<size_t>(x.rank()), 0), limit(x.shape().begin(), x.shape().end());
  start[axis] = begin;
  limit[axis] = end;
  return ops::Slice(x, start, limit);
}

Axes Inverse(const Axes& permutation) {
  Axes inverse(permutation.size());
  for (size_t i = 0; i < permutation.size(); ++i) inverse[permutation[i]] = static_cast<int64_t>(i);
  return inverse;
}

// Whether finite values stay finite in this dtype.
bool StayFinite(const Array& values, DType dtype) {
  if (!IsFloat(values.dtype()) || !IsFloat(dtype)) return true;
  const auto is_finite = [](const Value& x) { return ops::IsFinite(ops::Cast(x, DType::kF64)); };
  const Value same = ops::Equal(is_finite(Value(values)), is_finite(ops::Cast(Value(values), dtype)));
  return ops::ReduceMin(ops::Cast(same, DType::kF32)).Item<float>() != 0;
}

// `tensor` with the place replaced by the slot's value.
absl::StatusOr<Array> IntoTensor(const WeightPlace& place, const Array& slot, const Array& tensor) {
  const WeightRule& rule = *place.rule;
  Value value = ops::Reshape(ops::Cast(Value(slot), tensor.dtype()), place.permuted);
  if (!rule.transpose.empty()) value = ops::Transpose(value, Inverse(rule.transpose));
  if (rule.slice.has_value()) {
    const int64_t axis = rule.slice->axis, extent = tensor.shape()[axis];
    std::vector<Value> parts;
    if (place.begin > 0) parts.push_back(SliceOfAxis(Value(tensor), axis, 0, place.begin));
    parts.push_back(value);
    if (place.end < extent) parts.push_back(SliceOfAxis(Value(tensor), axis, place.end, extent));
    value = ops::Concatenate(parts, axis);
  }
  return value.ToArray();
}

// Copies a tensor of any dtype unchanged.
absl::Status CopyTensor(const io::TensorSource& source, const io::TensorInfo& tensor, io::SafetensorsWriter& writer) {
  constexpr int64_t kAtOnce = int64_t{1} << 22;
  std::vector<uint8_t> bytes;
  for (int64_t offset = 0; offset < tensor.num_bytes(); offset += kAtOnce) {
    bytes.resize(static_cast<size_t>(std::min(kAtOnce, tensor.num_bytes() - offset)));
    AQT_RETURN_IF_ERROR(source.Read(tensor, offset, absl::MakeSpan(bytes)));
    AQT_RETURN_IF_ERROR(writer.Write(tensor.name, offset, bytes));
  }
  return absl::OkStatus();
}

void AddLines(absl::string_view heading, const std::vector<std::string>& lines, std::string& text) {
  if (!lines.empty()) absl::StrAppend(&text, heading, ":\n  ", absl::StrJoin(lines, "\n  "), "\n");
}

}  // namespace

std::string WeightsReport::ToString() const {
  std::string text;
  AddLines("parameters without a tensor (add rules, or list them in `missing`)", missing, text);
  AddLines("tensors without a rule (add rules, which may say `ignore`)", left_over, text);
  AddLines("tensors that do not fit", wrong, text);
  AddLines("rules for nothing (correct or remove them)", unused, text);
  return text;
}

absl::StatusOr<WeightsReport> CheckWeights(const WeightsMap& map, const io::TensorSource& source,
                                           const Program& program) {
  AQT_ASSIGN_OR_RETURN(Plan plan, MakePlan(map, source, program));
  return std::move(plan.report);
}

absl::StatusOr<std::vector<WeightPlace>> PlaceWeights(const WeightsMap& map, const io::TensorSource& source,
                                                      const Program& program) {
  AQT_ASSIGN_OR_RETURN(Plan plan, MakePlan(map, source, program));
  if (plan.report.ok()) return std::move(plan.places);
  return absl::InvalidArgumentError(
      absl::StrCat("weights map: ", source.path(), " does not fit the program:\n", plan.report.ToString()));
}

absl::StatusOr<Array> ArrangeTensor(const WeightPlace& place, const Array& tensor) {
  const SuspendTrace at_once;
  const WeightRule& rule = *place.rule;
  Value value(tensor);
  if (rule.slice.has_value()) value = SliceOfAxis(value, rule.slice->axis, place.begin, place.end);
  if (!rule.transpose.empty()) value = ops::Transpose(value, rule.transpose);
  return value.ToArray();
}

absl::StatusOr<Array> SlotValue(const WeightPlace& place, const Array& tensor) {
  const SuspendTrace at_once;
  AQT_ASSIGN_OR_RETURN(const Array arranged, ArrangeTensor(place, tensor));
  return ops::Cast(ops::Reshape(Value(arranged), place.aval.shape), place.aval.dtype).ToArray();
}

absl::StatusOr<SlotValues> LoadWeights(const WeightsMap& map, const io::TensorSource& source, const Program& program) {
  AQT_ASSIGN_OR_RETURN(const std::vector<WeightPlace> places, PlaceWeights(map, source, program));
  SlotValues values;
  Array tensor;
  const io::TensorInfo* read = nullptr;
  for (const WeightPlace& place : places) {
    if (read != place.tensor) {
      AQT_ASSIGN_OR_RETURN(tensor, source.ReadArray(*place.tensor));
      read = place.tensor;
    }
    AQT_ASSIGN_OR_RETURN(Array value, SlotValue(place, tensor));
    values.emplace(place.slot, std::move(value));
  }
  return values;
}

absl::Status SaveWeights(const WeightsMap& map, const io::TensorSource& source, const Program& program,
                         const SlotValues& values, const io::FileSystem& fs, absl::string_view path) {
  AQT_ASSIGN_OR_RETURN(const std::vector<WeightPlace> places, PlaceWeights(map, source, program));
  std::map<const io::TensorInfo*, std::vector<const WeightPlace*>> places_of;
  for (const WeightPlace& place : places) {
    const auto value = values.find(place.slot);
    if (value == values.end()) {
      return absl::NotFoundError(absl::StrCat("weights map: no value for ", Describe(place.slot, place.aval)));
    }
    if (value->second.aval() != place.aval) {
      return absl::InvalidArgumentError(absl::StrCat("weights map: ", place.slot.ToString(), " is ",
                                                     value->second.aval().ToString(), ", expected ",
                                                     place.aval.ToString()));
    }
    places_of[place.tensor].push_back(&place);
  }
  const SuspendTrace at_once;
  io::SafetensorsWriterOptions options;
  options.metadata = source.shards()[0].metadata;
  options.output.overwrite = true;
  AQT_ASSIGN_OR_RETURN(
      const std::unique_ptr<io::SafetensorsWriter> writer,
      io::SafetensorsWriter::Create(fs, path, {source.tensors().begin(), source.tensors().end()}, options));
  for (const io::TensorInfo& tensor : source.tensors()) {
    const auto own = places_of.find(&tensor);
    if (own == places_of.end()) {
      AQT_RETURN_IF_ERROR(CopyTensor(source, tensor, *writer));
      continue;
    }
    AQT_ASSIGN_OR_RETURN(Array array, source.ReadArray(tensor));
    for (const WeightPlace* place : own->second) {
      const Array& value = values.at(place->slot);
      if (!StayFinite(value, array.dtype())) {
        return absl::OutOfRangeError(absl::StrCat("weights map: ", Describe(place->slot, place->aval),
                                                  " has a finite value that is not finite in ", Describe(tensor)));
      }
      AQT_ASSIGN_OR_RETURN(array, IntoTensor(*place, value, array));
    }
    AQT_RETURN_IF_ERROR(writer->WriteArray(tensor.name, array));
  }
  return writer->Finish();
}

}  // namespace aqt::nn
