#include "aqt/testing/calibrations.h"

#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/string_view.h"

namespace aqt::testing {
namespace {

// Draws a field by its type.
class FieldDrawer {
 public:
  explicit FieldDrawer(absl::FunctionRef<int64_t(int64_t)> below) : below_(below) {}

  void operator()(absl::string_view, auto& field) const { Draw(field); }

 private:
  void Draw(bool& field) const { field = below_(4) == 0; }
  void Draw(double& field) const {
    constexpr double kNumbers[] = {0.3, 0.7, 1, 2, 3, 60};
    field = kNumbers[below_(std::size(kNumbers))];
  }
  void Draw(std::vector<double>& field) const { field = {1.0, 0.9, 0.7, 0.5}; }
  void Draw(ConstantValue& field) const { Draw(field.emplace<double>()); }
  template <class T>
  void Draw(std::optional<T>& field) const {
    if (below_(3) == 0) Draw(field.emplace());
  }

  absl::FunctionRef<int64_t(int64_t)> below_;
};

}  // namespace

std::vector<Calibration> AllCalibrations() {
  return []<size_t... kKind>(std::index_sequence<kKind...>) {
    return std::vector<Calibration>{std::variant_alternative_t<kKind, Calibration>()...};
  }
  (std::make_index_sequence<std::variant_size_v<Calibration>>());
}

Calibration DrawCalibration(absl::FunctionRef<int64_t(int64_t)> below) {
  std::vector<Calibration> kinds = AllCalibrations();
  std::erase_if(kinds, HasState);
  Calibration& calibration = kinds[below(static_cast<int64_t>(kinds.size()))];
  std::visit(
      [&]<class C>(C& c) {
        if constexpr (!CalibrationTraits<C>::kHasState) CalibrationTraits<C>::VisitFields(c, FieldDrawer(below));
      },
      calibration);
  return calibration;
}

}  // namespace aqt::testing
