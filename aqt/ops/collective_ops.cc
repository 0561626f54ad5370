#include "aqt/ops/collective_ops.h"

#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/op.h"
#include "aqt/graph/trace.h"

namespace aqt {
namespace {

Collective*& Current() {
  thread_local Collective* current = nullptr;
  return current;
}

// What both have: one operand, no expansion, and a group of the right size when they run.
class ExchangeOp : public CompositeBase {
 public:
  explicit ExchangeOp(int processes) : processes_(processes) {}

  bool has_expansion() const override { return false; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (in.size() != 1) return absl::InvalidArgumentError(absl::StrCat("takes 1 operand, got ", in.size()));
    if (processes_ < 1) return absl::InvalidArgumentError(absl::StrCat("of ", processes_, " processes"));
    AQT_ASSIGN_OR_RETURN(Aval out, InferOne(in[0]));
    return std::vector<Aval>{std::move(out)};
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool>) const override {
    Collective* const collective = Current();
    if (collective == nullptr) {
      return absl::FailedPreconditionError(
          "there are no processes to exchange with; evaluate inside of a UseCollective (ops/collective_ops.h)");
    }
    if (collective->size() != processes_) {
      return absl::FailedPreconditionError(
          absl::StrCat("the program is made for ", processes_, " processes, and there are ", collective->size()));
    }
    AQT_ASSIGN_OR_RETURN(Array out, EvalOne(*collective, in[0]));
    return std::vector<Array>{std::move(out)};
  }

 protected:
  int processes() const { return processes_; }

 private:
  virtual absl::StatusOr<Aval> InferOne(const Aval& x) const = 0;
  virtual absl::StatusOr<Array> EvalOne(Collective& collective, const Array& x) const = 0;

  const int processes_;
};

class AllReduceOp final : public ExchangeOp {
 public:
  AllReduceOp(AllReduceKind kind, int processes) : ExchangeOp(processes), kind_(kind) {}

  std::string Name() const override {
    switch (kind_) {
      case AllReduceKind::kSum: return "all_reduce_sum";
      case AllReduceKind::kMax: return "all_reduce_max";
      case AllReduceKind::kMin: return "all_reduce_min";
    }
    return "?";
  }
  std::string Attributes() const override { return absl::StrCat("processes=", processes()); }

 private:
  absl::StatusOr<Aval> InferOne(const Aval& x) const override {
    if (x.dtype == DType::kF32 || x.dtype == DType::kF64 || x.dtype == DType::kS32) return x;
    return absl::InvalidArgumentError(absl::StrCat("takes f32, f64 and s32, not ", x.ToString(), "; cast it"));
  }
  absl::StatusOr<Array> EvalOne(Collective& collective, const Array& x) const override {
    return AllReduce(collective, kind_, x);
  }

  const AllReduceKind kind_;
};

class AllGatherOp final : public ExchangeOp {
 public:
  AllGatherOp(int64_t axis, int processes) : ExchangeOp(processes), axis_(axis) {}

  std::string Name() const override { return "all_gather"; }
  std::string Attributes() const override { return absl::StrCat("axis=", axis_, ", processes=", processes()); }

 private:
  absl::StatusOr<Aval> InferOne(const Aval& x) const override {
    if (axis_ < 0 || axis_ >= x.shape.rank()) {
      return absl::InvalidArgumentError(absl::StrCat(x.ToString(), " has no axis ", axis_));
    }
    const CheckedInt extent = CheckedInt(x.shape[axis_]) * processes();
    if (!extent.ok()) return absl::InvalidArgumentError(absl::StrCat("axis ", axis_, " exceeds 2^63 - 1"));
    Aval out = x;
    out.shape[axis_] = extent.value();
    return out;
  }
  absl::StatusOr<Array> EvalOne(Collective& collective, const Array& x) const override {
    return AllGather(collective, x, axis_);
  }

  const int64_t axis_;
};

}  // namespace

UseCollective::UseCollective(Collective* collective) : saved_(Current()) { Current() = collective; }
UseCollective::~UseCollective() { Current() = saved_; }

namespace ops {

Value AllReduce(AllReduceKind kind, const Value& x, int processes) {
  return BindOne(CompositeOp{std::make_shared<AllReduceOp>(kind, processes)}, {x});
}

Value AllGather(const Value& x, int64_t axis, int processes) {
  return BindOne(CompositeOp{std::make_shared<AllGatherOp>(axis, processes)}, {x});
}

}  // namespace ops
}  // namespace aqt
