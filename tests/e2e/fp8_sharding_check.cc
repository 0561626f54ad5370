#include "tests/e2e/fp8_sharding_check.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/collective/mesh.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/collective/collective_ops.h"
#include "aqt/ops/fp8/fp8_dot.h"
#include "aqt/ops/fp8/fp8_projections.h"
#include "aqt/ops/fp8/fp8_sharded_dense.h"
#include "aqt/ops/fp8/fp8_sharding.h"
#include "aqt/testing/random.h"
#include "aqt/testing/same_bits.h"

namespace aqt::testing {
namespace {

using In = absl::Span<const Value>;

constexpr int64_t kM = 32, kK = 64, kN = 24, kLength = 3;
constexpr int kSteps = 5;

Slot Data(absl::string_view name) { return {SlotKind::kData, std::string(name)}; }

struct Case {
  Fp8DotSharding plan;
  DType dtype = DType::kF32;
  int rank = 0;
  std::string text;
};

// A process's shard of an array in a layout.
Array PartOf(const Array& whole, const Case& c, const MatrixLayout& layout) {
  const std::string axes[] = {layout.rows, layout.columns};
  PerAxis start, limit;
  for (int64_t axis = 0; axis < whole.shape().rank(); ++axis) {
    const int64_t extent = whole.shape()[axis] / c.plan.mesh.SizeOf(axes[axis]);
    start.push_back(extent * c.plan.mesh.PositionOf(c.rank, axes[axis]));
    limit.push_back(start.back() + extent);
  }
  return *ops::Slice(Value(whole), start, limit).ToArray();
}

// The layer's y, and the gradients of sum(y dy).
template <class Layer>
absl::StatusOr<Program> TraceStep(const Aval& x, const Aval& k, const Aval& bias, const Aval& dy, const Layer& layer) {
  AQT_ASSIGN_OR_RETURN(
      const Program forward,
      Trace(
          [&](In in) {
            const Value y = layer(in[0], in[1], in[2], Fp8StateInputs("dot", kLength));
            return std::vector<Value>{ops::ReduceSum(y * in[3]), y};
          },
          {{Data("x"), x}, {Data("k"), k}, {Data("bias"), bias}, {Data("dy"), dy}}, {Data("loss"), Data("y")}));
  return ValueAndGrad(forward, {{0, 1, 2}});
}

struct Step {
  Array x, k, bias, dy;
};

Step RandomStep(const Case& c, int step) {
  const auto draw = [&](const Shape& shape, int which) {
    const double size = std::exp2(step * 5 % 7 + which - 3);
    return RandomArray({c.dtype, shape}, 40 * step + which, -size, size);
  };
  Step s{draw({kM, kK}, 0), draw({kK, kN}, 1), draw({kN}, 2), draw({kM, kN}, 3)};
  if (step == 2 || step == 3) {
    // A single element in the last process's shard: the other processes must see its effect.
    const double odd = step == 2 ? std::numeric_limits<double>::infinity() : std::nan("");
    const Array row = Cast(Array::Of<float>({static_cast<float>(odd)}, {1, 1}), c.dtype);
    s.x = *ops::Concatenate({ops::Slice(Value(s.x), {0, 0}, {kM - 1, kK}),
                             ops::Concatenate({ops::Slice(Value(s.x), {kM - 1, 0}, {kM, kK - 1}), Value(row)}, 1)},
                            0)
               .ToArray();
  }
  return s;
}

SlotValues Inputs(const Step& s, const SlotValues& state) {
  SlotValues values = state;
  values.insert({{Data("x"), s.x}, {Data("k"), s.k}, {Data("bias"), s.bias}, {Data("dy"), s.dy}});
  return values;
}

Array Magnitudes(const Array& x) { return *ops::Abs(Value(x)).ToArray(); }

// Whether `part` is the shard of `whole`: bit-equal, or, if a sum of `terms` is divided, within the bound of
// fp8_sharded_dense.h times `magnitude`, the sum of the magnitudes of the terms. Each side rounds its result and the
// bias at most twice more. The product of magnitudes is itself rounded: 1.01.
absl::Status Expect(const Case& c, const std::string& what, const Array& part, const Array& whole,
                    const Array& magnitude, bool is_divided, int64_t terms, bool to_bf16) {
  if (!is_divided) {
    return SameBits(part, whole) ? absl::OkStatus() : absl::InternalError(absl::StrCat(c.text, what, ": other bits"));
  }
  const double rounds = to_bf16 || c.dtype == DType::kBF16 ? 0x1p-9 : 0x1p-24;
  const double factor = 1.01 * ((2 * terms + c.plan.mesh.size()) * 0x1p-24 + 4 * rounds);
  const Array a = Cast(part, DType::kF32), b = Cast(whole, DType::kF32), m = Cast(magnitude, DType::kF32);
  if (a.shape() != b.shape()) return absl::InternalError(absl::StrCat(c.text, what, ": another shape"));
  for (int64_t i = 0; i < a.num_elements(); ++i) {
    const double got = a.View<float>()[i], want = b.View<float>()[i], bound = factor * m.View<float>()[i];
    if (std::isnan(want) ? std::isnan(got) : std::abs(got - want) <= bound) continue;
    return absl::InternalError(
        absl::StrCat(c.text, what, "[", i, "] is ", got, ", expected ", want, " within ", bound));
  }
  return absl::OkStatus();
}

absl::Status CheckStep(const Case& c, const SlotValues& one, const SlotValues& all, const SlotValues& magnitudes) {
  for (const auto& [slot, expected] : one) {
    if (slot.kind == SlotKind::kStat && !SameBits(all.at(slot), expected)) {
      return absl::InternalError(absl::StrCat(c.text, slot.ToString(), " is ", ContentsText(all.at(slot)),
                                              ", expected ", ContentsText(expected)));
    }
  }
  const auto expect = [&](const char* name, const MatrixLayout& layout, const std::string& sum, int64_t terms,
                          bool to_bf16 = false) {
    const Slot slot = Data(name);
    return Expect(c, name, all.at(slot), PartOf(one.at(slot), c, layout), PartOf(magnitudes.at(slot), c, layout),
                  !sum.empty(), terms, to_bf16);
  };
  AQT_RETURN_IF_ERROR(expect("y", c.plan.y, c.plan.YSum(), kK));
  AQT_RETURN_IF_ERROR(expect("grad(x)", c.plan.x, c.plan.DxSum(), kN));
  AQT_RETURN_IF_ERROR(expect("grad(k)", c.plan.kernel, c.plan.DkSum(), kM));
  return expect("grad(bias)", {c.plan.y.columns, ""}, c.plan.DkSum(), kM, /*to_bf16=*/true);
}

absl::Status CheckCase(const Case& c, const MeshGroups& groups) {
  const auto whole = [&](const Shape& shape) { return Aval{c.dtype, shape}; };
  AQT_ASSIGN_OR_RETURN(const Program one,
                       TraceStep(whole({kM, kK}), whole({kK, kN}), whole({kN}), whole({kM, kN}),
                                 [](const Value& x, const Value& k, const Value& bias, const Fp8DotState& state) {
                                   return ops::Fp8AddBias(ops::Fp8Dot(x, k, state, {.name = "dot"}), bias);
                                 }));
  const auto part_of = [&](const Step& s) {
    return Step{PartOf(s.x, c, c.plan.x), PartOf(s.k, c, c.plan.kernel), PartOf(s.bias, c, {c.plan.y.columns, ""}),
                PartOf(s.dy, c, c.plan.y)};
  };
  const Step own = part_of(RandomStep(c, 0));
  AQT_ASSIGN_OR_RETURN(const Program all,
                       TraceStep(own.x.aval(), own.k.aval(), own.bias.aval(), own.dy.aval(),
                                 [&](const Value& x, const Value& k, const Value& bias, const Fp8DotState& state) {
                                   const Fp8ShardedOptions options{
                                       .sharding = c.plan, .rank = c.rank, .dot = {.name = "dot"}};
                                   return ops::Fp8ShardedDense(x, k, bias, state, options);
                                 }));
  SlotValues state = InitialStats(one);
  const UseMesh use(&groups);
  for (int step = 0; step < kSteps; ++step) {
    const Step s = RandomStep(c, step);
    const Step magnitudes{Magnitudes(s.x), Magnitudes(s.k), Magnitudes(s.bias), Magnitudes(s.dy)};
    AQT_ASSIGN_OR_RETURN(const SlotValues expected, EvalSlots(one, Inputs(s, state)));
    AQT_ASSIGN_OR_RETURN(const SlotValues sums, EvalSlots(one, Inputs(magnitudes, state)));
    AQT_ASSIGN_OR_RETURN(const SlotValues got, EvalSlots(all, Inputs(part_of(s), state)));
    AQT_RETURN_IF_ERROR(CheckStep(c, expected, got, sums));
    for (auto& [slot, value] : state) value = expected.at(slot);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFp8Sharding(Collective& collective) {
  const int model = 2;
  AQT_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Make({{"data", collective.size() / model}, {"model", model}}));
  AQT_ASSIGN_OR_RETURN(const MeshGroups groups, MeshGroups::Make(mesh, collective));
  const AxisRule batch{"batch", "data"}, hidden{"hidden", "model"}, mlp{"mlp", "model"}, embed{"embed", "model"};
  const std::vector<AxisRule> rules[] = {{batch},
                                         {hidden},
                                         {mlp},
                                         {batch, hidden},
                                         {batch, mlp},
                                         {batch, embed, hidden},
                                         {batch, {"hidden", "data"}, embed, mlp},
                                         {batch, {"mlp", "data"}}};  // the kernel's columns are gathered
  for (const std::vector<AxisRule>& own : rules) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      AQT_ASSIGN_OR_RETURN(const Fp8DotSharding plan, PlanFp8Dot(own, mesh, {"batch", "embed"}, {"hidden", "mlp"}));
      const std::string text =
          absl::StrCat("rules ", &own - rules, " ", ToString(dtype), " process ", collective.rank(), ": ");
      AQT_RETURN_IF_ERROR(CheckCase({plan, dtype, collective.rank(), text}, groups));
    }
  }
  return absl::OkStatus();
}

}  // namespace aqt::testing
