#include "aqt/transforms/precision/amp.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/interpret/call.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/expand.h"

namespace aqt {
namespace {

int Rank(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 4;
    case DType::kF32: return 3;
    case DType::kBF16: return 2;
    case DType::kF16: return 1;
    default: return 0;
  }
}

// The dtypes between which Amp converts.
bool IsConverted(DType dtype) { return Rank(dtype) > 0; }

std::optional<DType> Widest(absl::Span<const DType> dtypes) {
  std::optional<DType> widest;
  for (const DType dtype : dtypes) {
    if (IsConverted(dtype) && (!widest.has_value() || Rank(dtype) > Rank(*widest))) widest = dtype;
  }
  return widest;
}

Value Converted(const Value& x, DType dtype) {
  return IsConverted(x.dtype()) && x.dtype() != dtype ? ops::Cast(x, dtype) : x;
}

// Operand `i` of an equation in another dtype.
using Convert = absl::FunctionRef<Value(size_t i, DType dtype)>;

void ConvertAll(DType dtype, Convert convert, AmpCall& call) {
  for (size_t i = 0; i < call.operands.size(); ++i) call.operands[i] = convert(i, dtype);
  if (DotGeneralOp* dot = std::get_if<DotGeneralOp>(&call.op); dot != nullptr && IsConverted(dot->out)) {
    dot->out = dtype;
  }
}

absl::StatusOr<AmpCall> Apply(const AmpRule& rule, DType compute_dtype, absl::Span<const DType> original,
                              Convert convert, AmpCall call) {
  switch (rule.kind) {
    case AmpRule::Kind::kOriginal:
      for (size_t i = 0; i < call.operands.size(); ++i) call.operands[i] = convert(i, original[i]);
      return call;
    case AmpRule::Kind::kCompute: ConvertAll(compute_dtype, convert, call); return call;
    case AmpRule::Kind::kWidest:
      if (const std::optional<DType> widest = Widest(original); widest.has_value()) ConvertAll(*widest, convert, call);
      return call;
    case AmpRule::Kind::kDType: ConvertAll(rule.dtype, convert, call); return call;
    case AmpRule::Kind::kFunction: return rule.function(compute_dtype, original, std::move(call));
  }
  return call;
}

// The keys that a policy may have for this scope, in lookup order.
std::vector<std::string> ScopeKeys(absl::string_view scope) {
  const std::vector<std::string> parts = absl::StrSplit(scope, '/', absl::SkipEmpty());
  std::vector<std::string> keys;
  for (size_t first = 0; first < parts.size(); ++first) {
    std::string key;
    for (size_t i = first; i < parts.size(); ++i) {
      absl::StrAppend(&key, key.empty() ? "" : "/", parts[i]);
      keys.push_back(key);
    }
  }
  return keys;
}

// A contraction of floats that is a composite, rebuilt for its operands.
std::optional<Value> BindContraction(const Op& op, absl::Span<const Value> in, const SourceLine& where) {
  if (!std::holds_alternative<CompositeOp>(op)) return std::nullopt;
  const std::optional<ContractionDims> dims = ContractionOf(op);
  // A function may have changed the operands. If their number is wrong, Bind reports it.
  if (!dims.has_value() || in.size() != (std::holds_alternative<RaggedDims>(*dims) ? 3 : 2)) return std::nullopt;
  const CallSite site(where);
  return std::visit(
      [&]<class D>(const D& own) -> std::optional<Value> {
        if constexpr (std::is_same_v<D, ConvDims>) return ops::Conv(in[0], in[1], own);
        else if constexpr (std::is_same_v<D, RaggedDims>) return ops::RaggedDot(in[0], in[1], in[2]);
        else if constexpr (std::is_same_v<D, EinsumDims>) return ops::Einsum(own.equation, in[0], in[1]);
        else return std::nullopt;
      },
      *dims);
}

class Transform {
 public:
  Transform(const Program& program, const AmpOptions& options, AmpReport* report)
      : program_(program), options_(options), report_(report), outside_(CurrentScope()) {}

  absl::StatusOr<std::vector<Value>> operator()(absl::Span<const Value> args) {
    AQT_ASSIGN_OR_RETURN(std::vector<Value> out,
                         RewriteValues(program_, args, [&](const Equation& eqn, absl::Span<const Value> operands) {
                           return Rule(eqn, operands);
                         }));
    for (size_t i = 0; i < out.size(); ++i) {
      const DType dtype = program_.aval(program_.outputs[i].var).dtype;
      if (out[i].status().ok() && out[i].dtype() != dtype) out[i] = ops::Cast(out[i], dtype);
    }
    return out;
  }

  // Whether some broadcasts may now be unused.
  bool moved_casts() const { return moved_casts_; }

  void Finish() {
    if (report_ == nullptr) return;
    const AmpPolicy defaults = DefaultAmpPolicy();
    for (const auto& [key, rule] : options_.policy) {
      if (!used_.contains(key) && !defaults.contains(key)) report_->unused_keys.push_back(key);
    }
  }

 private:
  using Found = AmpPolicy::const_iterator;

  Found Find(const Equation& eqn) const {
    std::vector<std::string> keys = ScopeKeys(outside_);
    for (std::string& key : ScopeKeys(program_.scope(eqn))) keys.push_back(std::move(key));
    if (const std::string name = CallName(eqn.op); !name.empty()) keys.push_back(name);
    keys.push_back(OpName(eqn.op));
    keys.push_back("amp_default");
    for (const std::string& key : keys) {
      if (const Found found = options_.policy.find(key); found != options_.policy.end()) return found;
    }
    return options_.policy.end();
  }

  absl::StatusOr<std::vector<Value>> Rule(const Equation& eqn, absl::Span<const Value> operands) {
    std::vector<DType> original;
    for (const VarId var : eqn.in) original.push_back(program_.aval(var).dtype);
    AmpCall call{eqn.op, {operands.begin(), operands.end()}};
    const Found found = Find(eqn);
    if (found != options_.policy.end()) {
      used_.insert(found->first);
      const auto convert = [&](size_t i, DType dtype) { return ConvertedOperand(eqn, i, operands[i], dtype); };
      AQT_ASSIGN_OR_RETURN(call, Apply(found->second, options_.compute_dtype, original, convert, std::move(call)));
    }
    if (!std::holds_alternative<CompositeOp>(call.op)) Unify(call.operands);
    // A bitcast takes the bits of the original dtype, whatever the policy says.
    if (std::holds_alternative<BitcastOp>(call.op)) call.operands[0] = Converted(call.operands[0], original[0]);
    Report(eqn, found, operands, call.operands);
    if (std::optional<Value> contraction = BindContraction(call.op, call.operands, eqn.where)) return {{*contraction}};
    if (const auto* op = std::get_if<BroadcastOp>(&call.op); op != nullptr) {
      broadcasts_.insert({eqn.out[0], {.source = call.operands[0], .op = *op}});
    }
    return Bind(call.op, call.operands, eqn.where);
  }

  // A cast of a broadcast is moved before it, where there are fewer elements. The gradient of a bias is then summed in
  // the dtype of the cast, as in jaxamp.
  Value ConvertedOperand(const Equation& eqn, size_t i, const Value& operand, DType dtype) {
    if (!IsConverted(operand.dtype()) || operand.dtype() == dtype) return operand;
    const auto it = broadcasts_.find(eqn.in[i]);
    if (it == broadcasts_.end()) return ops::Cast(operand, dtype);
    moved_casts_ = true;
    return BindOne(it->second.op, {ops::Cast(it->second.source, dtype)}, eqn.where);
  }

  // Floats of different dtypes, which a policy may leave, are converted to a dtype that holds all of their numbers.
  static void Unify(std::vector<Value>& operands) {
    std::optional<DType> common;
    for (const Value& operand : operands) {
      if (!IsConverted(operand.dtype())) continue;
      common = common.has_value() ? internal::Promote(*common, operand.dtype()) : operand.dtype();
    }
    for (Value& operand : operands) {
      if (common.has_value()) operand = Converted(operand, *common);
    }
  }

  void Report(const Equation& eqn, Found found, absl::Span<const Value> before, absl::Span<const Value> after) {
    if (report_ == nullptr) return;
    AmpReport::Line line{.op = OpName(eqn.op), .scope = program_.scope(eqn)};
    if (found != options_.policy.end()) {
      line.key = found->first;
      line.rule = found->second.ToString();
    }
    for (size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
      if (before[i].dtype() == after[i].dtype()) continue;
      line.casts.push_back(
          absl::StrCat("operand ", i, ": ", ToString(before[i].dtype()), " -> ", ToString(after[i].dtype())));
    }
    report_->lines.push_back(std::move(line));
  }

  const Program& program_;
  const AmpOptions& options_;
  AmpReport* const report_;
  const std::string outside_;
  absl::btree_set<std::string> used_;
  struct Broadcast {
    Value source;
    BroadcastOp op;
  };
  absl::flat_hash_map<VarId, Broadcast> broadcasts_;  // by their results in `program_`
  bool moved_casts_ = false;
};

absl::Status CheckOptions(const AmpOptions& options) {
  const auto is_legal = [](DType dtype) {
    return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32;
  };
  if (!is_legal(options.compute_dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("amp: compute_dtype is ", ToString(options.compute_dtype), ", expected f16, bf16 or f32"));
  }
  for (const auto& [key, rule] : options.policy) {
    if (rule.kind == AmpRule::Kind::kFunction && rule.function == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("amp: the rule of \"", key, "\" has no function"));
    }
    if (rule.kind == AmpRule::Kind::kDType && !IsConverted(rule.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("amp: the rule of \"", key, "\" converts to ",
                                                     ToString(rule.dtype), ", expected f16, bf16, f32 or f64"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string AmpRule::ToString() const {
  switch (kind) {
    case Kind::kOriginal: return "original precision";
    case Kind::kCompute: return "compute precision";
    case Kind::kWidest: return "widest precision";
    case Kind::kDType: return std::string(aqt::ToString(dtype));
    case Kind::kFunction: return "a function";
  }
  return "";
}

AmpRule UseOriginalPrecision() { return {.kind = AmpRule::Kind::kOriginal}; }
AmpRule UseComputePrecision() { return {.kind = AmpRule::Kind::kCompute}; }
AmpRule UseWidestPrecision() { return {.kind = AmpRule::Kind::kWidest}; }
AmpRule UsePrecision(DType dtype) { return {.kind = AmpRule::Kind::kDType, .dtype = dtype}; }

AmpPolicy DefaultAmpPolicy() {
  AmpPolicy policy;
  for (const char* op : {"add", "sub", "dot_general", "conv", "ragged_dot", "einsum"}) {
    policy[op] = UseComputePrecision();
  }
  for (const char* op : {"exp", "log", "mul", "div"}) policy[op] = UsePrecision(DType::kF32);
  for (const char* key : {"amp_default", "amp_stop"}) policy[key] = UseOriginalPrecision();
  return policy;
}

std::string AmpReport::ToString() const {
  std::string text;
  for (const Line& line : lines) {
    if (line.casts.empty()) continue;
    absl::StrAppend(&text, line.op, line.scope.empty() ? "" : absl::StrCat(" [", line.scope, "]"), ": ",
                    absl::StrJoin(line.casts, ", "), " (",
                    line.key.empty() ? "operands of different dtypes" : absl::StrCat("\"", line.key, "\": ", line.rule),
                    ")\n");
  }
  for (const std::string& key : unused_keys) absl::StrAppend(&text, "the key \"", key, "\" decided nothing\n");
  return text;
}

absl::StatusOr<Program> Amp(const Program& given, const AmpOptions& options, AmpReport* report) {
  AQT_RETURN_IF_ERROR(CheckOptions(options));
  if (report != nullptr) *report = {};
  // The policy has rules for its products and its exp.
  AQT_ASSIGN_OR_RETURN(const Program program, Expand(given, {"attention"}));
  Transform transform(program, options, report);
  absl::StatusOr<Program> result = Trace(
      [&](absl::Span<const Value> args) {
        absl::StatusOr<std::vector<Value>> out = transform(args);
        if (out.ok()) return *std::move(out);
        internal::ReportError(out.status());  // kept only if it is the first failure
        return std::vector<Value>();
      },
      InputsOf(program), OutputSlotsOf(program));
  transform.Finish();
  if (result.ok() && transform.moved_casts()) return Dce(*result);
  return result;
}

}  // namespace aqt
