// Compat::Qwix() against qwix 0.1.8 (tests/golden/qwix): the same bits, or sums of floats within their derived bounds.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/jax/contraction_spec.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/engine/planned_contraction_impl.h"
#include "aqt/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::IsOk;

// The path may be replaced to check a longer recording.
std::string RecordingPath() {
  const char* path = std::getenv("AQT_QWIX_RECORDING");
  return path != nullptr ? path : "tests/golden/qwix/qwix.safetensors";
}

// One recorded contraction with its gradients.
class Case {
 public:
  Case(const io::SafetensorsReader& reader, std::string name) : reader_(reader), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  Array operator[](absl::string_view what) const { return *reader_.ReadArray(absl::StrCat(name_, "/", what)); }
  std::string Spec() const {
    const Array bytes = (*this)["spec"];
    return std::string(static_cast<const char*>(bytes.data()), bytes.num_bytes());
  }
  OperandKeys Keys() const {
    const Array words = (*this)["key"];
    const Key key{words.View<uint32_t>()[0], words.View<uint32_t>()[1]};
    OperandKeys keys;
    keys.dlhs_lhs = keys.drhs_lhs = key;  // Qwix draws the noise of both gradients with one key
    return keys;
  }
  std::optional<Array> Bound(absl::string_view what) const {
    const absl::StatusOr<Array> bound = reader_.ReadArray(absl::StrCat(name_, "/", what, "_bound"));
    return bound.ok() ? std::optional(*bound) : std::nullopt;
  }

 private:
  const io::SafetensorsReader& reader_;
  const std::string name_;
};

std::vector<Case> Cases(const io::SafetensorsReader& reader) {
  std::vector<Case> cases;
  for (const io::TensorInfo& tensor : reader.tensors()) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(tensor.name, '/');
    if (parts.second == "spec") cases.emplace_back(reader, parts.first);
  }
  return cases;
}

// With an observer a plan computes step by step, not with the kernels of one pass.
struct StepByStep final : Observer {
  void OnTensor(absl::string_view, const ArrayRef&) override {}
};

struct Results {
  Array out, dlhs, drhs;
};

Results RunCase(const DotGeneralPlan& plan, const Case& c, const Runtime& runtime) {
  const Array lhs = c["lhs"], rhs = c["rhs"], g = c["g"];
  const internal::ContractionPlan& engine = internal::EngineOf(plan);
  const OperandKeys keys = c.Keys();
  internal::CallKeys context;
  context.operand_keys = &keys;
  ArrayBuilder out(plan.out_aval()), dlhs(lhs.aval()), drhs(rhs.aval());
  Residuals residuals;
  EXPECT_THAT(engine.Forward({lhs}, {rhs}, {}, context, out.ref(), &residuals, runtime, {}), IsOk());
  EXPECT_THAT(engine.Backward(g, residuals, {}, context, dlhs.ref(), drhs.ref(), runtime, {}), IsOk());
  return {std::move(out).Build(), std::move(dlhs).Build(), std::move(drhs).Build()};
}

// Empty if the results are equal, or both NaN; with a bound, at most so far apart. Otherwise the first difference.
std::string Difference(const Array& got, const Case& c, const char* what) {
  const Array want = c[what];
  if (got.aval() != want.aval()) {
    return absl::StrCat(what, " is ", got.aval().ToString(), ", Qwix has ", want.aval().ToString());
  }
  const std::optional<Array> bound = c.Bound(what);
  const Array a = Cast(got, DType::kF32), b = Cast(want, DType::kF32);
  for (int64_t i = 0; i < a.shape().num_elements(); ++i) {
    const float x = a.View<float>()[i], y = b.View<float>()[i];
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const float allowed = bound.has_value() ? bound->View<float>()[i] : 0;
    if (!(std::fabs(x - y) <= allowed)) return absl::StrCat(what, "[", i, "] is ", x, ", Qwix has ", y);
  }
  return "";
}

std::string Difference(const DotGeneralPlan& plan, const Case& c, const Runtime& runtime) {
  const Results got = RunCase(plan, c, runtime);
  std::string found = Difference(got.out, c, "out");
  if (found.empty()) found = Difference(got.dlhs, c, "dlhs");
  return found.empty() ? Difference(got.drhs, c, "drhs") : found;
}

TEST(Qwix, EqualsRecording) {
  const auto reader = io::SafetensorsReader::Open(io::LocalFileSystem(), RecordingPath());
  ASSERT_THAT(reader, IsOk());
  const std::vector<Case> cases = Cases(*reader);
  EXPECT_GE(cases.size(), 80u);
  kernels::ThreadPool pool(3);
  StepByStep observer;
  for (const Case& c : cases) {
    SCOPED_TRACE(absl::StrCat(c.name(), " ", c["lhs"].aval().ToString(), " x ", c["rhs"].aval().ToString()));
    const auto spec = jax::ParseContractionSpec(c.Spec());
    ASSERT_THAT(spec, IsOk()) << c.Spec();
    for (const kernels::Target target : kernels::SupportedTargets()) {
      SCOPED_TRACE(target);
      const auto plan = DotGeneralPlan::Make(spec->config, c["lhs"].aval(), c["rhs"].aval(), spec->dims,
                                             {.semantics = spec->semantics, .target = target});
      ASSERT_THAT(plan, IsOk()) << c.Spec();
      for (const Runtime& runtime : {Runtime{}, Runtime{.executor = &pool}, Runtime{.observer = &observer}}) {
        EXPECT_EQ(Difference(*plan, c, runtime), "") << c.Spec();
      }
    }
  }
}

// The recording shows each difference from AQT.
TEST(Qwix, EachFieldOfCompatMatters) {
  const auto reader = io::SafetensorsReader::Open(io::LocalFileSystem(), RecordingPath());
  ASSERT_THAT(reader, IsOk());
  for (const CompatField& field : CompatFields()) {
    if (!field.is_of_qwix) continue;
    int differ = 0;
    for (const Case& c : Cases(*reader)) {
      auto spec = jax::ParseContractionSpec(c.Spec());
      ASSERT_THAT(spec, IsOk());
      spec->semantics.compat.*field.member = false;
      const auto plan = DotGeneralPlan::Make(spec->config, c["lhs"].aval(), c["rhs"].aval(), spec->dims,
                                             {.semantics = spec->semantics});
      ASSERT_THAT(plan, IsOk());
      differ += Difference(*plan, c, {}).empty() ? 0 : 1;
    }
    EXPECT_GT(differ, 0) << field.name;
    ::testing::Test::RecordProperty(std::string(field.name), differ);
  }
}

}  // namespace
}  // namespace aqt
