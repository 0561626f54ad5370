#ifndef AQT_TESTING_CALIBRATIONS_H_
#define AQT_TESTING_CALIBRATIONS_H_

// All kinds of calibrations, for tests that must hold for each. Such tests cover a new kind without a change.

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "aqt/quant/config/calibrations.h"

namespace aqt::testing {

// One of each kind with the defaults of its fields, in the order of Calibration.
std::vector<Calibration> AllCalibrations();

// visit(name, field) for each field.
template <class F>
void VisitFields(Calibration& calibration, F visit) {
  std::visit([&]<class C>(C& c) { CalibrationTraits<C>::VisitFields(c, visit); }, calibration);
}

// A calibration without state. Its fields are legal numbers that matter for tensors of a few elements around 1;
// constants are numbers. below(n) draws from 0 .. n-1.
Calibration DrawCalibration(absl::FunctionRef<int64_t(int64_t)> below);

}  // namespace aqt::testing

#endif  // AQT_TESTING_CALIBRATIONS_H_
