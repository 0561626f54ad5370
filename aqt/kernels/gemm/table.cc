#include "aqt/kernels/gemm/table.h"

#include <vector>

#include "aqt/core/ceil_div.h"
#include "aqt/core/check.h"
#include "aqt/kernels/gemm/rows.h"

namespace aqt::kernels {
namespace {

using Element = PanelFormat::Element;

// Whether panels of one element type can represent all values of another.
bool Holds(Element panels, Element values) {
  switch (panels) {
    case Element::kS4: return values == Element::kS4;
    case Element::kS8:
    case Element::kU8Offset:
    case Element::kS16: return values == Element::kS8 || values == Element::kS4;
    case Element::kBF16: return values != Element::kF32;
    case Element::kF32: return true;
  }
  return false;
}

// Cycles per column and k, according to the table.
double Cost(const GemmKernel& kernel, int64_t rows) {
  const int64_t unit = kernel.row_unit;
  return static_cast<double>(RoundUp(rows, unit)) / kernel.products_per_cycle;
}

// Whether `a` is preferred over `b`; the machine can run both.
bool Precedes(const GemmKernel& a, const GemmKernel& b, const GemmTypes& types, int64_t rows) {
  // For floats the rows must not decide, because the kernels' bits differ.
  if (types.sums == GemmSums::kF32) rows = a.row_unit * b.row_unit;
  if (Cost(a, rows) != Cost(b, rows)) return Cost(a, rows) < Cost(b, rows);
  return types.rhs_is_packed_ahead ? a.rhs.ElementBits() < b.rhs.ElementBits()
                                   : a.rhs.ElementBits() > b.rhs.ElementBits();
}

const std::vector<const GemmKernel*>& Table() {
  static const auto* const table = [] {
    auto* rows = new std::vector<const GemmKernel*>;
    for (const internal::GemmRows part : {internal::AmxGemms(), internal::DotGemms(), internal::S8MaddGemms(),
                                          internal::F32Gemms(), internal::EmulatedGemms()}) {
      for (const GemmKernel* row : part) {
        if (IsSupported(row->target)) rows->push_back(row);
      }
    }
    return rows;
  }();
  return *table;
}

}  // namespace

const GemmKernel& ChooseGemm(const GemmTypes& types, Target target, int64_t rows) {
  const GemmKernel* best = nullptr;
  for (const GemmKernel* row : Table()) {
    if (row->emulated || row->sums != types.sums || !target.Includes(row->target)) continue;
    if (!Holds(row->lhs.element, types.lhs) || !Holds(row->rhs.element, types.rhs)) continue;
    if (best == nullptr || Precedes(*row, *best, types, rows)) best = row;
  }
  if (best != nullptr) return *best;
  AQT_CHECK(types.sums == GemmSums::kS32);  // f32_scalar supports all floats
  return *internal::EmulatedGemms()[0];
}

Element NarrowestElement(DType dtype) {
  switch (dtype) {
    case DType::kS8: return Element::kS8;
    case DType::kS4:
    case DType::kS2: return Element::kS4;
    case DType::kBF16:
    case DType::kE4M3FN:
    case DType::kE5M2: return Element::kBF16;
    default: return Element::kF32;
  }
}

absl::Span<const GemmKernel* const> AllGemmKernels() { return Table(); }

}  // namespace aqt::kernels
