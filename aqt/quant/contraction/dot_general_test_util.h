#ifndef AQT_QUANT_CONTRACTION_DOT_GENERAL_TEST_UTIL_H_
#define AQT_QUANT_CONTRACTION_DOT_GENERAL_TEST_UTIL_H_

// Shared by the tests of dot_general.h.

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"

namespace aqt {

inline const DotDims kBatched{.lhs_contracting = {2}, .rhs_contracting = {0}, .lhs_batch = {1}, .rhs_batch = {1}};

inline DotGeneralConfig WithoutNoise(FullyQuantizedOptions options = {}) {
  options.use_stochastic_rounding = false;
  return *FullyQuantized(options);
}

// Uniform in (-1, 1) times `scale`, the same for the same seed.
inline Array RandomArray(DType dtype, const Shape& shape, uint64_t seed, float scale = 1) {
  std::vector<float> values(shape.num_elements());
  const RandomBits bits(MakeKey(seed), static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = (UniformF32(bits.Bits32(static_cast<int64_t>(i))) - 0.5f) * 2 * scale;
  }
  return Cast(ArrayRef(values.data(), shape), dtype);
}

// Random choices for property tests; the same seed gives the same choices with one standard library.
class Choices {
 public:
  explicit Choices(uint64_t seed) : engine_(seed) {}
  int64_t Below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(engine_); }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  template <class T>
  T Pick(std::initializer_list<T> values) {
    return *(values.begin() + Below(static_cast<int64_t>(values.size())));
  }
  uint64_t Bits() { return engine_(); }

 protected:
  std::mt19937_64 engine_;
};

// `compat` with some of the fields of Qwix.
inline Compat WithSomeOfQwix(Choices& random, Compat compat) {
  for (const CompatField& field : CompatFields()) {
    if (field.is_of_qwix) compat.*field.member = random.OneIn(2);
  }
  return compat;
}

// The fields that are set, for messages.
inline std::string NamesOf(const Compat& compat) {
  std::string names;
  for (const CompatField& field : CompatFields()) {
    if (compat.*field.member) names += std::string(" ") + std::string(field.name);
  }
  return names;
}

// Equal values: NaN equals NaN, -0 equals +0.
inline bool SameValues(const Array& a, const Array& b) {
  if (a.aval() != b.aval()) return false;
  const Array x = Cast(a, DType::kF64), y = Cast(b, DType::kF64);
  for (int64_t i = 0; i < a.num_elements(); ++i) {
    const double u = x.View<double>()[i], v = y.View<double>()[i];
    if (u != v && !(std::isnan(u) && std::isnan(v))) return false;
  }
  return true;
}

// A plan of the same contraction for another target.
inline DotGeneralPlan OnTarget(const DotGeneralPlan& plan, kernels::Target target) {
  PlanOptions options = plan.options();
  options.target = target;
  return *DotGeneralPlan::Make(plan.config(), plan.lhs_aval(), plan.rhs_aval(), plan.dims(), options);
}

struct PlanResults {
  Array out, dlhs, drhs;
};

// Runs Forward and Backward.
inline PlanResults RunPlan(const DotGeneralPlan& plan, const Array& lhs, const Array& rhs, const Array& g,
                           const Context& context = {}, const Runtime& runtime = {}) {
  ArrayBuilder out(plan.out_aval()), dlhs(plan.lhs_aval()), drhs(plan.rhs_aval());
  Residuals residuals;
  EXPECT_EQ(plan.Forward(lhs, rhs, context, out.ref(), &residuals, runtime), absl::OkStatus());
  EXPECT_EQ(plan.Backward(g, residuals, context, dlhs.ref(), drhs.ref(), runtime), absl::OkStatus());
  return {std::move(out).Build(), std::move(dlhs).Build(), std::move(drhs).Build()};
}

inline bool SameResults(const PlanResults& a, const PlanResults& b) {
  return SameValues(a.out, b.out) && SameValues(a.dlhs, b.dlhs) && SameValues(a.drhs, b.drhs);
}

// Records a copy of every intermediate.
class Recorder final : public Observer {
 public:
  void OnTensor(absl::string_view name, const ArrayRef& value) override {
    tensors[std::string(name)] = Array::CopyOf(value);
  }
  std::map<std::string, Array> tensors;
};

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_DOT_GENERAL_TEST_UTIL_H_
