// Random changes to the fields of composites: the result is refused, or is saved with the change.

#include "aqt/ops/saved/composite_kinds.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/aval.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/composite_fields.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/ops/saved/composite_proto.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace aqt::internal {
namespace {

using ::aqt::testing::IsOk;
using ::aqt::testing::Random;

// Enum values are consecutive numbers.
template <class E>
struct Range;
template <>
struct Range<DType> {
  static constexpr int kFirst = 0, kCount = kNumDTypes;
};
template <>
struct Range<QuantMode> {
  static constexpr int kFirst = 1, kCount = 4;
};
template <>
struct Range<PrngLayout> {
  static constexpr int kFirst = 0, kCount = 2;
};
template <>
struct Range<OperandForm> {
  static constexpr int kFirst = 0, kCount = 5;
};
template <>
struct Range<Side> {
  static constexpr int kFirst = 0, kCount = 2;
};
template <>
struct Range<KeyRole> {
  static constexpr int kFirst = 0, kCount = 8;
};
template <>
struct Range<ScalingKind> {
  static constexpr int kFirst = 0, kCount = 9;
};

// Changes a value at random, usually to a different one. Numbers stay small.
class Changer {
 public:
  explicit Changer(uint64_t seed) : random_(seed) {}

  // Changes one of the fields.
  template <class F>
  void ChangeField(F& fields) {
    int count = 0;
    VisitFields(fields, [&](const char*, auto&) { ++count; });
    int64_t left = random_.Below(count);
    VisitFields(fields, [&](const char*, auto& value) {
      if (left-- == 0) Change(value);
    });
  }

 private:
  template <class T>
  void Change(T& value) {
    if constexpr (std::is_same_v<T, bool>) value = !value;
    else if constexpr (std::is_integral_v<T>) value += static_cast<T>(random_.Below(5)) - 2;
    else if constexpr (std::is_enum_v<T>) value = static_cast<T>(Range<T>::kFirst + random_.Below(Range<T>::kCount));
    else ChangeField(value);
  }
  void Change(std::string& value) { value += "x"; }
  void Change(Axes& axes) {
    if (axes.empty() || random_.Below(3) == 0) axes.push_back(random_.Below(3));
    else if (random_.Below(2) == 0) axes.pop_back();
    else Change(axes[static_cast<size_t>(random_.Below(std::ssize(axes)))]);
  }
  void Change(Shape& shape) {
    Axes extents(shape.begin(), shape.end());
    Change(extents);
    for (int64_t& extent : extents) extent = std::max<int64_t>(extent, 0);
    shape = Shape(extents);
  }
  void Change(Aval& aval) { random_.Below(2) == 0 ? Change(aval.dtype) : Change(aval.shape); }
  template <class T>
  void Change(std::optional<T>& value) {
    if (value.has_value() && random_.Below(2) == 0) value.reset();
    else Change(value.has_value() ? *value : value.emplace());
  }
  void Change(std::vector<Slot>& slots) {
    if (slots.empty()) slots.push_back({SlotKind::kStat, "added"});
    else slots[0].path += "x";
  }
  void Change(PlannedDims& dims) {
    if (auto* dot = std::get_if<DotDims>(&dims)) Change(random_.Below(2) == 0 ? dot->lhs_contracting : dot->rhs_batch);
    else if (auto* conv = std::get_if<ConvDims>(&dims)) Change(conv->feature_group_count);
    else dims = DotDims();
  }
  void Change(Noise& noise) { Change(noise.noise_sharing_axes); }
  void Change(Numerics& numerics) { numerics = IntSymmetric{.bits = static_cast<int>(2 + random_.Below(7))}; }
  void Change(Quantizer& quantizer) {
    if (random_.Below(2) == 0) Change(quantizer.numerics);
    else quantizer.calibration = Percentile{.percentile = static_cast<double>(90 + random_.Below(10))};
  }
  void Change(DotGeneralConfig& config) {
    Change(random_.Below(2) == 0 ? config.fwd.lhs.quantizer : config.dlhs.rhs.quantizer);
  }
  void Change(Semantics& semantics) { Change(semantics.compat.snr_rates_unrounded_scales); }

  Random random_;
};

// Changes `fields` at random: they are refused, or make an operation that comes back from a file. Returns whether the
// operation differs.
template <class F>
bool ChangedComesBack(F fields, uint64_t seed) {
  const F before = fields;
  Changer(seed).ChangeField(fields);
  const absl::StatusOr<std::shared_ptr<const Composite>> made = MakeComposite(fields);
  if (!made.ok()) {
    EXPECT_TRUE(absl::IsInvalidArgument(made.status()) || absl::IsUnimplemented(made.status())) << made.status();
    return false;
  }
  const CompositeCodec& codec = ops::ProgramCodecs().at((*made)->Name());
  const absl::StatusOr<std::string> saved = codec.save(**made);
  if (!saved.ok()) {
    ADD_FAILURE() << (*made)->Name() << ": " << saved.status();
    return false;
  }
  const absl::StatusOr<std::shared_ptr<const Composite>> loaded = codec.load(*saved);
  if (!loaded.ok()) {
    ADD_FAILURE() << (*made)->Name() << " {" << (*made)->Attributes() << "}: " << loaded.status();
    return false;
  }
  EXPECT_TRUE(CompositeOp{*loaded} == CompositeOp{*made}) << (*made)->Name();
  EXPECT_EQ((*loaded)->Attributes(), (*made)->Attributes());
  return FieldsOf<F>(**made) != before;
}

// One composite of each name, from the files of testdata.
std::map<std::string, CompositeOp> Composites() {
  std::map<std::string, CompositeOp> found;
  for (const char* name :
       {"every_composite", "every_fp8_composite", "data_and_scale", "low_precision_sum", "xla_sum", "attention"}) {
    std::ifstream file(absl::StrCat("aqt/ops/saved/testdata/", name, "_v1.aqtprog"), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const absl::StatusOr<Program> program = LoadProgram(bytes, ops::ProgramCodecs());
    EXPECT_THAT(program, IsOk()) << name;
    if (!program.ok()) continue;
    for (const Equation& eqn : program->eqns) {
      if (const auto* op = std::get_if<CompositeOp>(&eqn.op)) found.emplace(op->impl->Name(), *op);
    }
  }
  return found;
}

TEST(CompositeKindsTest, ChangedFieldsAreRefusedOrComeBack) {
  const std::map<std::string, CompositeOp> composites = Composites();
  const auto check = [&]<class F>(const CompositeKind<F>& kind) {
    int num_changed = 0;
    for (const std::string& name : kind.names) {
      ASSERT_TRUE(composites.contains(name)) << name;
      const std::optional<F> fields = FieldsOf<F>(composites.at(name));
      ASSERT_TRUE(fields.has_value()) << name;
      for (uint64_t seed = 1; seed <= 100; ++seed) {
        SCOPED_TRACE(absl::StrCat(name, ", seed ", seed));
        num_changed += ChangedComesBack(*fields, seed) ? 1 : 0;
      }
    }
    EXPECT_GT(num_changed, 0) << kind.field;
  };
  std::apply([&](const auto&... kind) { (check(kind), ...); }, CompositeKinds());
}

// Operations are equal if and only if their fields are.
TEST(CompositeKindsTest, EqualFieldsAreEqualOperations) {
  const CompositeOp a{*MakeComposite(XlaSumFields{{0, 2}})}, same{*MakeComposite(XlaSumFields{{0, 2}})},
      other{*MakeComposite(XlaSumFields{{0, 1}})}, another_kind{*MakeComposite(FoldInKeyFields{2})};
  EXPECT_EQ(a, a);
  EXPECT_EQ(a, same);
  EXPECT_NE(a, other);
  EXPECT_NE(a, another_kind);
  EXPECT_NE(another_kind, a);
}

}  // namespace
}  // namespace aqt::internal
