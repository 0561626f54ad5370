#include "serving/c/array.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/machine/target_name.h"
#include "aqt/quant/text/compat_names.h"

namespace aqt::capi {
namespace {

// The number of a dtype is that of DType plus one, for ever.
static_assert(AQT_BOOL == static_cast<int>(DType::kBool) + 1 && AQT_S2 == static_cast<int>(DType::kS2) + 1 &&
              AQT_S4 == static_cast<int>(DType::kS4) + 1 && AQT_S8 == static_cast<int>(DType::kS8) + 1 &&
              AQT_U8 == static_cast<int>(DType::kU8) + 1 && AQT_S16 == static_cast<int>(DType::kS16) + 1 &&
              AQT_S32 == static_cast<int>(DType::kS32) + 1 && AQT_U32 == static_cast<int>(DType::kU32) + 1 &&
              AQT_S64 == static_cast<int>(DType::kS64) + 1 && AQT_E4M3FN == static_cast<int>(DType::kE4M3FN) + 1 &&
              AQT_E5M2 == static_cast<int>(DType::kE5M2) + 1 && AQT_F16 == static_cast<int>(DType::kF16) + 1 &&
              AQT_BF16 == static_cast<int>(DType::kBF16) + 1 && AQT_F32 == static_cast<int>(DType::kF32) + 1 &&
              AQT_F64 == static_cast<int>(DType::kF64) + 1 && AQT_F64 == kNumDTypes);

template <class... T>
absl::Status Invalid(const T&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::StatusOr<Shape> ToShape(int32_t rank, const int64_t* dims, absl::string_view name) {
  if (rank < 0 || rank > AQT_MAX_RANK) {
    return Invalid(name, ": the rank is ", rank, ", expected 0 .. ", AQT_MAX_RANK);
  }
  if (rank > 0 && dims == nullptr) return Invalid(name, ": dims is NULL, and the rank is ", rank);
  const Shape shape(absl::MakeConstSpan(dims, static_cast<size_t>(rank)));
  AQT_RETURN_IF_ERROR(Annotate(CheckShape(shape), name));
  return shape;
}

// The first and the last byte of the elements, as distances from `data`; both 0 if there are no elements. `strides` in
// bytes. InvalidArgument if a distance does not fit.
struct Extent {
  int64_t low = 0, high = 0;
};
absl::StatusOr<Extent> ExtentOf(const Shape& shape, absl::Span<const int64_t> strides, absl::string_view name) {
  Extent extent;
  for (int64_t axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] == 0) return Extent();
  }
  for (int64_t axis = 0; axis < shape.rank(); ++axis) {
    int64_t distance = 0;
    int64_t& end = strides[axis] < 0 ? extent.low : extent.high;
    if (__builtin_mul_overflow(shape[axis] - 1, strides[axis], &distance) ||
        __builtin_add_overflow(end, distance, &end)) {
      return Invalid(name, ": stride ", strides[axis], " of axis ", axis, " is too large");
    }
  }
  return extent;
}

struct Layout {
  DType dtype;
  Shape shape;
  Strides strides;  // in elements
};

absl::StatusOr<Layout> ToLayout(const aqt_array* array, absl::string_view name) {
  if (array == nullptr) return Invalid(name, " is NULL");
  Layout layout;
  AQT_ASSIGN_OR_RETURN(layout.dtype, ToDType(array->dtype, name));
  AQT_ASSIGN_OR_RETURN(layout.shape, ToShape(array->rank, array->dims, name));
  const int64_t size = SizeOf(layout.dtype);
  if (array->strides == nullptr) {
    layout.strides = DenseStrides(layout.shape);
  } else {
    const auto strides = absl::MakeConstSpan(array->strides, static_cast<size_t>(array->rank));
    for (int64_t axis = 0; axis < layout.shape.rank(); ++axis) {
      // A stride along which there are no two elements has no meaning.
      const bool used = layout.shape[axis] > 1;
      if (used && strides[axis] % size != 0) {
        return Invalid(name, ": stride ", strides[axis], " of axis ", axis, " is not a multiple of ", size,
                       ", the size of ", ToString(layout.dtype), "; copy the array");
      }
      layout.strides.push_back(used ? strides[axis] / size : 0);
    }
    AQT_RETURN_IF_ERROR(ExtentOf(layout.shape, strides, name).status());
  }
  if (layout.shape.num_elements() == 0) return layout;
  if (array->data == nullptr) return Invalid(name, ": data is NULL");
  if (reinterpret_cast<uintptr_t>(array->data) % static_cast<uintptr_t>(size) != 0) {
    return Invalid(name, ": data is not aligned to ", size, " bytes, the size of ", ToString(layout.dtype),
                   "; copy the array");
  }
  return layout;
}

// Whether no two elements can share memory: along the axes with ascending strides, each stride leaves room for the
// elements of the axes before it.
bool IsInjective(const Layout& layout) {
  std::vector<std::pair<uint64_t, int64_t>> axes;  // stride, extent
  for (int64_t axis = 0; axis < layout.shape.rank(); ++axis) {
    const int64_t stride = layout.strides[axis];
    if (layout.shape[axis] == 0) return true;
    if (layout.shape[axis] == 1) continue;
    axes.emplace_back(stride < 0 ? 0 - static_cast<uint64_t>(stride) : static_cast<uint64_t>(stride),
                      layout.shape[axis]);
  }
  std::sort(axes.begin(), axes.end());
  uint64_t last = 0;  // the distance from the first to the last element
  for (const auto& [stride, extent] : axes) {
    if (stride <= last) return false;
    last += stride * static_cast<uint64_t>(extent - 1);
  }
  return true;
}

template <class Number>
absl::Status SetEnum(int32_t given, absl::Span<const Number> values, absl::string_view name, Number* out) {
  if (given < 0 || given >= static_cast<int32_t>(values.size())) {
    return Invalid("options.", name, " is ", given, ", expected 0 .. ", values.size() - 1);
  }
  *out = values[given];
  return absl::OkStatus();
}

absl::StatusOr<QuantMode> ToMode(int32_t mode, absl::string_view name) {
  if (mode >= AQT_MODE_TRAIN && mode <= AQT_MODE_SERVE) return static_cast<QuantMode>(mode);
  return Invalid("options.", name, " is ", mode, ", expected one of AQT_MODE_..., 1 .. 4, or 0");
}
static_assert(AQT_MODE_TRAIN == static_cast<int>(QuantMode::kTrain) &&
              AQT_MODE_CALIBRATE == static_cast<int>(QuantMode::kCalibrate) &&
              AQT_MODE_CONVERT == static_cast<int>(QuantMode::kConvert) &&
              AQT_MODE_SERVE == static_cast<int>(QuantMode::kServe));

}  // namespace

aqt_dtype FromDType(DType dtype) { return static_cast<aqt_dtype>(dtype) + 1; }

absl::StatusOr<DType> ToDType(aqt_dtype dtype, absl::string_view name) {
  if (dtype >= 1 && dtype <= kNumDTypes) return static_cast<DType>(dtype - 1);
  return Invalid(name, ": ", dtype, " is no dtype, expected 1 .. ", kNumDTypes);
}

absl::StatusOr<Aval> ToAval(const aqt_aval* aval, absl::string_view name) {
  if (aval == nullptr) return Invalid(name, " is NULL");
  Aval result;
  AQT_ASSIGN_OR_RETURN(result.dtype, ToDType(aval->dtype, name));
  AQT_ASSIGN_OR_RETURN(result.shape, ToShape(aval->rank, aval->dims, name));
  return result;
}

aqt_aval FromAval(const Aval& aval) {
  return {FromDType(aval.dtype), static_cast<int32_t>(aval.shape.rank()), aval.shape.extents().data()};
}

absl::StatusOr<ArrayRef> ToArrayRef(const aqt_array* array, absl::string_view name) {
  AQT_ASSIGN_OR_RETURN(Layout layout, ToLayout(array, name));
  return ArrayRef(layout.dtype, std::move(layout.shape), std::move(layout.strides), array->data);
}

absl::StatusOr<MutableArrayRef> ToMutableArrayRef(const aqt_array* array, absl::string_view name) {
  AQT_ASSIGN_OR_RETURN(Layout layout, ToLayout(array, name));
  if (!IsInjective(layout)) {
    return Invalid(name, ": two elements may share memory with the strides ", absl::StrJoin(layout.strides, ","),
                   " (in elements) of the shape ", layout.shape.ToString(), "; write to a dense array");
  }
  return MutableArrayRef(layout.dtype, std::move(layout.shape), std::move(layout.strides), array->data);
}

aqt_array FromArray(const Array& array) {
  const Aval& aval = array.aval();
  return {const_cast<void*>(array.data()), FromDType(aval.dtype), static_cast<int32_t>(aval.shape.rank()),
          aval.shape.extents().data(), nullptr};
}

absl::Status CheckApart(const ArrayRef& a, absl::string_view a_name, const ArrayRef& b, absl::string_view b_name) {
  if (a.shape.num_elements() == 0 || b.shape.num_elements() == 0) return absl::OkStatus();
  const auto range = [](const ArrayRef& x) {
    Extent extent;
    for (int64_t axis = 0; axis < x.shape.rank(); ++axis) {
      (x.strides[axis] < 0 ? extent.low : extent.high) += (x.shape[axis] - 1) * x.strides[axis];
    }
    const uintptr_t data = reinterpret_cast<uintptr_t>(x.data);
    const int64_t size = SizeOf(x.dtype);
    return std::pair(data + extent.low * size, data + (extent.high + 1) * size);
  };
  const auto [a_begin, a_end] = range(a);
  const auto [b_begin, b_end] = range(b);
  if (a_end <= b_begin || b_end <= a_begin) return absl::OkStatus();
  return Invalid(a_name, " and ", b_name, " overlap in memory; write to memory of its own");
}

absl::Status CheckAval(const Aval& got, const Aval& want, absl::string_view name) {
  if (got == want) return absl::OkStatus();
  return Invalid(name, " is ", got.ToString(), ", expected ", want.ToString());
}

absl::StatusOr<Axes> ToAxes(const int64_t* axes, size_t count, absl::string_view name) {
  if (count > AQT_MAX_RANK) return Invalid(name, ": there are ", count, " axes, expected at most ", AQT_MAX_RANK);
  if (count > 0 && axes == nullptr) return Invalid(name, " is NULL, expected ", count, " axes");
  return Axes(axes, axes + count);
}

absl::StatusOr<PlanOptions> ToPlanOptions(const aqt_plan_options* options) {
  AQT_ASSIGN_OR_RETURN(const aqt_plan_options given, Read(options, "options"));
  PlanOptions result;
  if (given.forward_only != 0) result.passes = PlanPasses::kForwardOnly;
  Semantics& semantics = result.semantics;
  AQT_RETURN_IF_ERROR(SetEnum<PrngLayout>(given.prng_layout, {PrngLayout::kPartitionable, PrngLayout::kOriginal},
                                          "prng_layout", &semantics.prng_layout));
  AQT_RETURN_IF_ERROR(SetEnum<Arithmetic>(given.arithmetic, {Arithmetic::kXlaCompatible, Arithmetic::kIeee},
                                          "arithmetic", &semantics.arithmetic));
  AQT_RETURN_IF_ERROR(SetEnum<WeightOnly>(given.weight_only, {WeightOnly::kDigits, WeightOnly::kFloat}, "weight_only",
                                          &semantics.weight_only));
  AQT_ASSIGN_OR_RETURN(semantics.compat, CompatFromNames(TextOf(given.compat), ',', "options.compat"));
  if (given.target != nullptr) {
    const absl::StatusOr<kernels::Target> target = kernels::TargetFromString(given.target);
    AQT_RETURN_IF_ERROR(Annotate(target.status(), "options.target"));
    result.target = *target;
  }
  return result;
}

absl::StatusOr<CallOptions> ToCallOptions(const aqt_call_options* options) {
  AQT_ASSIGN_OR_RETURN(const aqt_call_options given, Read(options, "options"));
  CallOptions result;
  if (given.executor != nullptr) {
    AQT_RETURN_IF_ERROR(Check(given.executor, "options.executor"));
    result.executor = &given.executor->pool;
  }
  if (given.has_key != 0) result.context.key = Key{given.key[0], given.key[1]};
  if (given.mode != 0) {
    AQT_ASSIGN_OR_RETURN(result.context.quant_mode, ToMode(given.mode, "mode"));
  }
  if (given.rhs_mode != 0) {
    AQT_ASSIGN_OR_RETURN(result.context.rhs_quant_mode, ToMode(given.rhs_mode, "rhs_mode"));
  }
  if (given.num_state > 0 && given.old_state == nullptr) {
    return Invalid("options.old_state is NULL, and num_state is ", given.num_state);
  }
  if (given.num_state > AQT_MAX_RANK) {
    return Invalid("options.num_state is ", given.num_state, ", expected the number of aqt_dot_general_num_state");
  }
  for (size_t i = 0; i < given.num_state; ++i) {
    AQT_ASSIGN_OR_RETURN(ArrayRef old, ToArrayRef(&given.old_state[i], absl::StrCat("options.old_state[", i, "]")));
    result.old_state.push_back(std::move(old));
    if (given.new_state == nullptr) continue;
    AQT_ASSIGN_OR_RETURN(MutableArrayRef updated,
                         ToMutableArrayRef(&given.new_state[i], absl::StrCat("options.new_state[", i, "]")));
    result.new_state.push_back(std::move(updated));
  }
  return result;
}

}  // namespace aqt::capi
