// What a program outside this repository sees: the public headers under their own names, and three lines in its WORKSPACE.

#include <iostream>

#include "aqt/core/array.h"
#include "aqt/core/dtype.h"

int main() {
  const aqt::Array x = aqt::Array::Of<float>({1.0f, 1.00390625f, -3.0f}, {3});
  const aqt::Array y = aqt::Cast(x, aqt::DType::kBF16);
  std::cout << x.aval() << " -> " << y.aval() << ":";
  for (const aqt::BFloat16 value : y.View<aqt::BFloat16>()) std::cout << " " << aqt::ToFloat(value);
  std::cout << "\n";
}
