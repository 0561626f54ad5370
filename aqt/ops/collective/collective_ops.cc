#include "aqt/ops/collective/collective_ops.h"

#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/op.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/graph/trace.h"

namespace aqt {
namespace {

Collective*& Current() {
  thread_local Collective* current = nullptr;
  return current;
}

const MeshGroups*& CurrentMesh() {
  thread_local const MeshGroups* current = nullptr;
  return current;
}

// The processes of an exchange.
struct Group {
  int processes = 1;
  std::string mesh_axes = "";

  std::string ToString() const {
    return absl::StrCat("processes=", processes, mesh_axes.empty() ? "" : ", mesh_axes=", mesh_axes);
  }
  absl::StatusOr<Collective*> Find() const {
    const MeshGroups* const mesh = CurrentMesh();
    Collective* const all = Current();
    Collective* const found = mesh_axes.empty() ? all : mesh == nullptr ? nullptr : mesh->Along(mesh_axes);
    if (found == nullptr && !mesh_axes.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("there are no processes along ", mesh_axes,
                                                        " to exchange with; evaluate inside of a UseMesh ",
                                                        "with these axes (ops/collective_ops.h)"));
    }
    if (found == nullptr) {
      return absl::FailedPreconditionError(
          "there are no processes to exchange with; evaluate inside of a UseCollective (ops/collective_ops.h)");
    }
    if (found->size() != processes) {
      return absl::FailedPreconditionError(
          absl::StrCat("the program is made for ", processes, " processes, and there are ", found->size()));
    }
    return found;
  }
};

// Common to both: one operand, no expansion, and a group of the right size at run time.
class ExchangeOp : public CompositeBase {
 public:
  explicit ExchangeOp(Group group) : group_(std::move(group)) {}

  bool has_expansion() const override { return false; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (in.size() != 1) return absl::InvalidArgumentError(absl::StrCat("takes 1 operand, got ", in.size()));
    if (processes() < 1) return absl::InvalidArgumentError(absl::StrCat("of ", processes(), " processes"));
    AQT_ASSIGN_OR_RETURN(Aval out, InferOne(in[0]));
    return std::vector<Aval>{std::move(out)};
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool>) const override {
    AQT_ASSIGN_OR_RETURN(Collective* const collective, group_.Find());
    AQT_ASSIGN_OR_RETURN(Array out, EvalOne(*collective, in[0]));
    return std::vector<Array>{std::move(out)};
  }

 protected:
  int processes() const { return group_.processes; }
  std::string GroupText() const { return group_.ToString(); }

 private:
  virtual absl::StatusOr<Aval> InferOne(const Aval& x) const = 0;
  virtual absl::StatusOr<Array> EvalOne(Collective& collective, const Array& x) const = 0;

  const Group group_;
};

class AllReduceOp final : public ExchangeOp {
 public:
  AllReduceOp(AllReduceKind kind, Group group) : ExchangeOp(std::move(group)), kind_(kind) {}

  std::string Name() const override {
    switch (kind_) {
      case AllReduceKind::kSum: return "all_reduce_sum";
      case AllReduceKind::kMax: return "all_reduce_max";
      case AllReduceKind::kMin: return "all_reduce_min";
    }
    return "?";
  }
  std::string Attributes() const override { return GroupText(); }

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
  AllGatherOp(int64_t axis, Group group) : ExchangeOp(std::move(group)), axis_(axis) {}

  std::string Name() const override { return "all_gather"; }
  std::string Attributes() const override { return absl::StrCat("axis=", axis_, ", ", GroupText()); }

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

// x, which other processes also use, each for its part of a batch.
class SumGradientOp final : public CompositeBase {
 public:
  explicit SumGradientOp(Group group) : group_(std::move(group)) {}

  std::string Name() const override { return "sum_gradient"; }
  std::string Attributes() const override { return group_.ToString(); }
  bool has_expansion() const override { return false; }
  bool has_gradient() const override { return true; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (in.size() != 1) return absl::InvalidArgumentError(absl::StrCat("takes 1 operand, got ", in.size()));
    if (in[0].dtype == DType::kF32 || in[0].dtype == DType::kF64) return std::vector<Aval>{in[0]};
    return absl::InvalidArgumentError(absl::StrCat("takes f32 and f64, not ", in[0].ToString(), "; cast it"));
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool>) const override {
    return std::vector<Array>{in[0]};
  }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput>, absl::Span<const bool>) const override {
    return OpKernel{.run = [](const KernelCall&) { return absl::OkStatus(); }, .same = {{0, 0}}};
  }
  std::vector<std::optional<Value>> GradBackward(absl::Span<const Value>,
                                                 absl::Span<const Value> cotangents) const override {
    return {ops::AllReduce(AllReduceKind::kSum, cotangents[0], group_.processes, group_.mesh_axes)};
  }

 private:
  const Group group_;
};

}  // namespace

UseCollective::UseCollective(Collective* collective) : saved_(Current()) { Current() = collective; }
UseCollective::~UseCollective() { Current() = saved_; }
UseMesh::UseMesh(const MeshGroups* groups) : saved_(CurrentMesh()) { CurrentMesh() = groups; }
UseMesh::~UseMesh() { CurrentMesh() = saved_; }

namespace ops {

Value AllReduce(AllReduceKind kind, const Value& x, int processes, absl::string_view mesh_axes) {
  const auto op = std::make_shared<AllReduceOp>(kind, Group{processes, std::string(mesh_axes)});
  return BindOne(CompositeOp{op}, {x});
}

Value AllGather(const Value& x, int64_t axis, int processes, absl::string_view mesh_axes) {
  const auto op = std::make_shared<AllGatherOp>(axis, Group{processes, std::string(mesh_axes)});
  return BindOne(CompositeOp{op}, {x});
}

Value SumGradient(const Value& x, int processes, absl::string_view mesh_axes) {
  const auto op = std::make_shared<SumGradientOp>(Group{processes, std::string(mesh_axes)});
  return BindOne(CompositeOp{op}, {x});
}

}  // namespace ops
}  // namespace aqt
