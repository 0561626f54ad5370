#include "serving/convert/weight_loss.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/weights/microscaled.h"
#include "serving/formats/weight_codec.h"

namespace aqt::serving {
namespace {

namespace ct = compressed_tensors;

constexpr size_t kExamples = 3;
// The number of values at the start of a unit that are always examined.
constexpr int kGlance = 8;
// A unit has lost its other values to outliers if at most one in this many nonzero values remains.
constexpr int64_t kValuesPerOutlier = 256;

int64_t MaxOutliers(int64_t values) { return std::max<int64_t>(1, values / kValuesPerOutlier); }

// Magnitudes compare like their bits, taken as integers.
template <class T>
struct Floats;
template <>
struct Floats<float> {
  using Bits = int32_t;
  static constexpr int kMantissaBits = 23;
};
template <>
struct Floats<BFloat16> {
  using Bits = int16_t;
  static constexpr int kMantissaBits = 7;
};
template <>
struct Floats<Float16> {
  using Bits = int16_t;
  static constexpr int kMantissaBits = 10;
};

template <class T>
typename Floats<T>::Bits BitsOf(float x) {
  return std::bit_cast<typename Floats<T>::Bits>(ConvertElement<T>(x));
}
template <class T>
float FloatOf(typename Floats<T>::Bits bits) {
  return ConvertElement<float>(std::bit_cast<T>(bits));
}

// The largest magnitude by which a scale may be multiplied.
float LargestFactor(const WeightScheme& weights) {
  const ct::ValueRange range = ct::RangeOf(weights);
  return weights.symmetric ? std::max(-range.min, range.max) : range.max - range.min;
}

// The number of times a scale is halved to get the magnitude above which a value is large; see Finder::LargeAbove.
int StepsBelowScale(const WeightScheme& weights) {
  if (weights.type == ValueType::kFloat || weights.num_bits >= 4) return weights.symmetric ? 1 : 0;
  const int steps = weights.num_bits == 2 ? 3 : 2;
  return weights.symmetric ? steps : steps - 2;
}

// Whether the predicate `is_one` holds for one of the n words at `data`. Blocks have one length and no branch per word,
// so that the compiler vectorizes.
template <class Word, class IsOne>
bool AnyWord(const Word* data, int64_t n, IsOne is_one) {
  constexpr int64_t kBlock = 16;
  for (; n >= kBlock; n -= kBlock, data += kBlock) {
    Word any = 0;
    for (int64_t i = 0; i < kBlock; ++i) any |= static_cast<Word>(is_one(data[i]) ? ~Word{0} : 0);
    if (any != 0) return true;
  }
  return std::any_of(data, data + n, is_one);
}

// Small stored groups, of two words or more. If no word consists of zeros (or with zero points, of equal values), each
// group has two nonzero values. Stored groups are faster to read than the weight. Floats are zeros without their signs.
class StoredGroups {
 public:
  StoredGroups(const std::vector<StoredRows>& stored, const WeightScheme& weights) {
    if (weights.strategy != WeightStrategy::kGroup) return;
    for (const StoredRows& part : stored) {
      const bool packed = part.suffix == kWeightPacked;
      if (!packed && part.suffix != kWeight) continue;
      bits_ = packed ? weights.num_bits : 8;
      word_bits_ = packed ? 32 : 64;
      const bool whole_words = word_bits_ % bits_ == 0 && weights.group_size * bits_ % word_bits_ == 0;
      if (whole_words && weights.group_size * bits_ / word_bits_ >= 2) rows_ = &part.rows;
      symmetric_ = weights.symmetric;
      uint64_t signs = 0;
      for (int bit = bits_ - 1; bit < word_bits_; bit += bits_) signs |= uint64_t{1} << bit;
      if (weights.type == ValueType::kFloat) mask_ = ~signs;
      else if (packed) zeros_ = signs;  // packed integers are not negative: 0 is stored as 2^(bits - 1)
    }
  }

  bool MayHoldZeros(int64_t row) const {
    if (rows_ == nullptr) return true;
    return word_bits_ == 32 ? AnyUniformOf<uint32_t>(row) : AnyUniformOf<uint64_t>(row);
  }

 private:
  template <class Word>
  bool AnyUniformOf(int64_t row) const {
    const int64_t n = rows_->num_bytes() / rows_->shape()[0] / static_cast<int64_t>(sizeof(Word));
    const Word* const words = static_cast<const Word*>(rows_->data()) + row * n;
    if (symmetric_) {
      const Word zeros = static_cast<Word>(zeros_), mask = static_cast<Word>(mask_);
      return AnyWord(words, n, [zeros, mask](Word word) { return (word & mask) == zeros; });
    }
    return AnyWord(words, n, [bits = bits_](Word word) { return word == std::rotl(word, bits); });
  }

  const Array* rows_ = nullptr;  // null unless they have this layout
  int bits_ = 0, word_bits_ = 0;
  bool symmetric_ = false;
  uint64_t zeros_ = 0, mask_ = ~uint64_t{0};  // a word of zeros under the mask, if it is symmetric
};

// What the codes of scales of 8 bits multiply values by.
std::array<float, 256> FactorsOfCodes(const WeightScheme& weights, float global_scale) {
  std::array<uint8_t, 256> all;
  for (int code = 0; code < 256; ++code) all[code] = static_cast<uint8_t>(code);
  const DType dtype = weights.scale_type == ScaleType::kE4M3 ? DType::kE4M3FN : DType::kU8;
  QuantizedWeight scales;
  scales.scale = Array::CopyOf(ArrayRef(dtype, {1, 256}, all.data()));
  scales.global_scale = global_scale;
  const Array factors = ct::FactorsOf(scales, weights.scale_type);
  std::array<float, 256> result;
  std::copy_n(factors.View<float>().data(), 256, result.data());
  return result;
}

// The codes of e4m3fn below are subnormal numbers.
constexpr uint8_t kSmallestNormalE4M3 = 0x08, kLargestE4M3 = 0x7e;

// Some rows that are quantized separately.
struct Slice {
  int64_t begin = -1;  // the first row; -1: none yet
  Array q, products;   // f32; the products are those of the weight's dtype
  std::optional<Array> zero_point;
};
absl::Status QuantizeSlice(const ArrayRef& rows, const Scheme& scheme, WeightRules rules, float global_scale,
                           Slice& slice) {
  AQT_ASSIGN_OR_RETURN(QuantizedWeight weight, QuantizeRows(rows, scheme, rules, global_scale));
  AQT_ASSIGN_OR_RETURN(const Array products, ct::DequantizeWeight(weight, scheme.weights));
  slice.products = Cast(Cast(products, rows.dtype), DType::kF32);
  slice.q = Cast(weight.q, DType::kF32);
  slice.zero_point = std::move(weight.zero_point);
  return absl::OkStatus();
}

// Finds the losses of some rows.
template <class T>
class Finder {
 public:
  using Bits = typename Floats<T>::Bits;

  Finder(const ArrayRef& rows, int64_t first_row, const Scheme& scheme, WeightRules rules, const Array& scale,
         const std::vector<StoredRows>& stored, float global_scale)
      : rows_(rows),
        first_row_(first_row),
        scheme_(scheme),
        rules_(rules),
        global_scale_(global_scale),
        scales_(static_cast<const Bits*>(scale.data())),
        groups_(stored, scheme.weights),
        units_(UnitsOf(scheme.weights, rows.shape)),
        largest_scale_(BitsOf<T>(0.98f * LargestFinite() / LargestFactor(scheme.weights))),
        steps_(StepsBelowScale(scheme.weights)) {
    if (scheme.weights.scale_type == ScaleType::kWeight) return;
    codes_ = static_cast<const uint8_t*>(scale.data());
    const std::array<float, 256> factors = FactorsOfCodes(scheme.weights, global_scale);
    std::array<Bits, 256> bits;
    std::transform(factors.begin(), factors.end(), bits.begin(), BitsOf<T>);
    factors_.resize(scale.num_elements());
    for (size_t i = 0; i < factors_.size(); ++i) factors_[i] = bits[codes_[i]];
    scales_ = factors_.data();
    // Powers of two have no digits to lose, and are at most half the largest value of their group.
    is_e4m3_ = scheme.weights.scale_type == ScaleType::kE4M3;
    may_overflow_ = is_e4m3_ && bits[kLargestE4M3] > largest_scale_;
  }

  absl::StatusOr<WeightLoss> Run() {
    const int64_t num_rows = rows_.shape[0], columns = rows_.shape[1];
    for (int64_t row = 0, unit = 0; row < num_rows; row += units_.rows, unit += units_.per_row) {
      if (!groups_.MayHoldZeros(row) && ScalesAreOrdinary(unit)) continue;
      for (int64_t g = 0; g < units_.per_row; ++g) {
        const int64_t column = g * units_.cols;
        const Bits scale = scales_[unit + g];
        const int64_t n = std::min(units_.cols, columns - column);
        if (IsOrdinary(unit + g) && HasTwoLarge(ValuesAt(row, column), n, LargeAbove(scale))) continue;
        AQT_RETURN_IF_ERROR(LookCloser(unit + g, row, column, scale));
      }
    }
    return std::move(loss_);
  }

 private:
  static constexpr Bits kSmallestNormal = Bits{1} << Floats<T>::kMantissaBits;
  static constexpr Bits kMagnitude = std::numeric_limits<Bits>::max();

  static float LargestFinite() { return FloatOf<T>(BitsOf<T>(std::numeric_limits<float>::infinity()) - 1); }

  const Bits* ValuesAt(int64_t row, int64_t column) const {
    return static_cast<const Bits*>(rows_.data) + row * rows_.shape[1] + column;
  }

  bool IsSubnormal(int64_t unit) const {
    if (codes_ == nullptr) return scales_[unit] < kSmallestNormal;
    return is_e4m3_ && codes_[unit] < kSmallestNormalE4M3;
  }
  bool IsOrdinary(int64_t unit) const { return !IsSubnormal(unit) && scales_[unit] <= largest_scale_; }

  // For a row of units, starting at `unit`. Blocks have one length, as in AnyWord.
  bool ScalesAreOrdinary(int64_t unit) const {
    if (codes_ != nullptr) {
      return !may_overflow_ && (!is_e4m3_ || std::all_of(codes_ + unit, codes_ + unit + units_.per_row,
                                                         [](uint8_t code) { return code >= kSmallestNormalE4M3; }));
    }
    constexpr int64_t kBlock = 16;
    const Bits* scale = scales_ + unit;
    int64_t n = units_.per_row;
    for (; n >= kBlock; n -= kBlock, scale += kBlock) {
      Bits odd = 0;
      for (int64_t i = 0; i < kBlock; ++i) {
        odd |= static_cast<Bits>((scale[i] < kSmallestNormal) | (scale[i] > largest_scale_) ? ~0 : 0);
      }
      if (odd != 0) return false;
    }
    return std::all_of(scale, scale + n, [this](Bits s) { return s >= kSmallestNormal && s <= largest_scale_; });
  }

  // A magnitude such that a unit with two larger values loses nothing beyond rounding. It is slightly more than half
  // the scale, which does not become 0. With a zero point, whose addition loses digits of the quotient, it is the
  // scale. With 2 or 3 bits, where half the scale is not small beside the largest value, it is less.
  Bits LargeAbove(Bits scale) const {
    const Bits steps = static_cast<Bits>(steps_ * kSmallestNormal);
    return static_cast<Bits>((scale > steps + kSmallestNormal ? scale - steps : scale >> steps_) + 2);
  }

  // Examines the first few of the n values of a unit's row; false if they do not prove it.
  static bool HasTwoLarge(const Bits* x, int64_t n, Bits above) {
    if (n < kGlance) return std::count_if(x, x + n, [above](Bits v) { return (v & kMagnitude) > above; }) >= 2;
    // Several values in a word: adding sets the sign of those that are above. One in each half makes two.
    constexpr uint64_t kOnes = ~uint64_t{0} / std::numeric_limits<std::make_unsigned_t<Bits>>::max();
    constexpr size_t kWords = kGlance * sizeof(Bits) / sizeof(uint64_t);
    std::array<uint64_t, kWords> words;
    std::memcpy(words.data(), x, sizeof(words));
    std::array<uint64_t, 2> signs = {0, 0};
    for (size_t i = 0; i < kWords; ++i)
      signs[2 * i / kWords] |= (words[i] & kOnes * kMagnitude) + kOnes * (kMagnitude - above);
    constexpr uint64_t kSigns = kOnes << (8 * sizeof(Bits) - 1);
    return (signs[0] & kSigns) != 0 && (signs[1] & kSigns) != 0;
  }

  // Calls f(row, column) for the values of a unit until it returns false.
  template <class F>
  void ForEachValue(int64_t row, int64_t column, F f) const {
    const int64_t last_row = std::min(row + units_.rows, rows_.shape[0]);
    const int64_t last_column = std::min(column + units_.cols, rows_.shape[1]);
    for (int64_t r = row; r < last_row; ++r) {
      for (int64_t c = column; c < last_column; ++c) {
        if (!f(r, c)) return;
      }
    }
  }

  absl::Status LookCloser(int64_t unit, int64_t row, int64_t column, Bits scale) {
    WeightLoss::Example example;
    example.unit =
        unit + (scheme_.weights.strategy == WeightStrategy::kTensor ? 0 : first_row_ / units_.rows * units_.per_row);
    example.scale = FloatOf<T>(scale);
    if (IsSubnormal(unit)) Add(Loss::kSubnormalScale, example);
    const Bits above = LargeAbove(scale);
    const int64_t limit = MaxOutliers(units_.rows * units_.cols);
    int64_t large = 0, values = 0;
    ForEachValue(row, column, [&](int64_t r, int64_t c) {
      const Bits x = *ValuesAt(r, c) & kMagnitude;
      large += x > above;
      values += x != 0;
      return large <= limit;
    });
    // AQT multiplies by the inverse of the scale, which may overflow.
    const bool inverse_overflows = rules_ == WeightRules::kAqt && scale < kSmallestNormal && values > 0;
    const bool may_lose = (large <= limit && large < values) || inverse_overflows;
    const bool may_overflow = scale > largest_scale_;
    if (!may_lose && !may_overflow) return absl::OkStatus();
    AQT_RETURN_IF_ERROR(Quantize(row));
    if (may_lose) CountKept(row, column, values, example);
    if (may_overflow) FindOverflow(row, column, example);
    return absl::OkStatus();
  }

  // Quantizes the units that begin at `row`, and more if the rules need more rows. The stored weight may be packed.
  absl::Status Quantize(int64_t row) {
    const int64_t num_rows = rows_.shape[0], columns = rows_.shape[1];
    const int64_t end = std::min(num_rows, row + std::max(units_.rows, MinRows(rules_)));
    const int64_t begin = std::max<int64_t>(0, std::min(row, end - MinRows(rules_)));
    if (begin == slice_.begin) return absl::OkStatus();
    const ArrayRef rows(rows_.dtype, {end - begin, columns}, ValuesAt(begin, 0));
    slice_.begin = begin;
    return QuantizeSlice(rows, scheme_, rules_, global_scale_, slice_);
  }

  // The stored value, without the zero point.
  float Stored(int64_t row, int64_t column) const {
    const float q = slice_.q.View<float>()[(row - slice_.begin) * rows_.shape[1] + column];
    if (!slice_.zero_point.has_value()) return q;
    return q - slice_.zero_point->View<int8_t>()[units_.Of(row - slice_.begin, column)];
  }

  void CountKept(int64_t row, int64_t column, int64_t values, WeightLoss::Example example) {
    const int64_t limit = MaxOutliers(values);
    const Bits above = LargeAbove(BitsOf<T>(static_cast<float>(example.scale)));
    int64_t large = 0;  // with 2 or 3 bits some of them become 0
    ForEachValue(row, column, [&](int64_t r, int64_t c) {
      const Bits x = *ValuesAt(r, c);
      const bool kept = Stored(r, c) != 0;
      large += kept || (x & kMagnitude) > above;
      const float value = FloatOf<T>(x);
      if (kept && (example.kept == 0 || std::abs(value) > std::abs(example.value))) {
        example.row = first_row_ + r;
        example.column = c;
        example.value = value;
      }
      example.kept += kept;
      return example.kept <= limit;
    });
    if (example.kept == 0) Add(Loss::kZeroed, example);
    else if (large <= limit && example.kept < values) Add(Loss::kOutliers, example);
  }

  void FindOverflow(int64_t row, int64_t column, WeightLoss::Example example) {
    bool found = false;
    ForEachValue(row, column, [&](int64_t r, int64_t c) {
      if (std::isfinite(slice_.products.View<float>()[(r - slice_.begin) * rows_.shape[1] + c])) return true;
      example.row = first_row_ + r;
      example.column = c;
      example.value = Stored(r, c);
      found = true;
      return false;
    });
    if (found) Add(Loss::kOverflow, example);
  }

  void Add(Loss loss, const WeightLoss::Example& example) {
    WeightLoss::Units& units = loss_.units[static_cast<int>(loss)];
    ++units.count;
    if (units.first.size() < kExamples) units.first.push_back(example);
  }

  const ArrayRef& rows_;
  int64_t first_row_;
  const Scheme& scheme_;
  WeightRules rules_;
  float global_scale_;
  const Bits* scales_;  // what the values of each unit are multiplied by
  // For scales of 8 bits.
  const uint8_t* codes_ = nullptr;
  std::vector<Bits> factors_;
  bool is_e4m3_ = false, may_overflow_ = false;
  StoredGroups groups_;
  ct::Units units_;
  Bits largest_scale_;  // no product with a smaller one overflows
  int steps_;
  WeightLoss loss_;
  Slice slice_;  // set by Quantize
};

std::string Number(double x) { return absl::StrFormat("%.6g", x); }

std::string At(const WeightLoss::Example& e) {
  return absl::StrCat(Number(e.value), " at [", e.row, ",", e.column, "]");
}

// ", ..." if there are more units than the listed ones.
std::string AndMore(const WeightLoss::Units& units) {
  return units.count > static_cast<int64_t>(units.first.size()) ? ", ..." : "";
}

// "30000 at [3,3], 20000 at [7,1], ..."
std::string Outliers(const WeightLoss::Units& units) {
  return absl::StrCat(
      absl::StrJoin(units.first, ", ",
                    [](std::string* out, const WeightLoss::Example& e) { absl::StrAppend(out, At(e)); }),
      AndMore(units));
}

}  // namespace

std::string UnitName(const WeightScheme& weights, const Shape& shape, int64_t unit) {
  const ct::Units units = UnitsOf(weights, shape);
  const int64_t row = unit / units.per_row * units.rows, column = unit % units.per_row * units.cols;
  if (weights.strategy == WeightStrategy::kChannel) return absl::StrCat("row ", row);
  const std::string columns = absl::StrCat(column, ":", std::min(column + units.cols, shape[1]), "]");
  if (weights.strategy == WeightStrategy::kGroup) return absl::StrCat("[", row, ",", columns);
  return absl::StrCat("[", row, ":", std::min(row + units.rows, shape[0]), ",", columns);
}

absl::string_view UnitsName(WeightStrategy strategy) {
  switch (strategy) {
    case WeightStrategy::kTensor: return "tensors";
    case WeightStrategy::kChannel: return "rows";
    case WeightStrategy::kGroup: return "groups";
    case WeightStrategy::kBlock: return "blocks";
  }
  return "units";
}

bool WeightLoss::empty() const {
  return std::all_of(units.begin(), units.end(), [](const Units& u) { return u.count == 0; });
}

void WeightLoss::Append(const WeightLoss& later) {
  for (int i = 0; i < kNumLosses; ++i) {
    units[i].count += later.units[i].count;
    for (const Example& example : later.units[i].first) {
      if (units[i].first.size() < kExamples) units[i].first.push_back(example);
    }
  }
}

absl::StatusOr<WeightLoss> FindLoss(const ArrayRef& rows, int64_t first_row, const Scheme& scheme, WeightRules rules,
                                    const std::vector<StoredRows>& stored, float global_scale) {
  AQT_CHECK(rows.IsDense() && rows.shape.rank() == 2);
  const auto scale =
      std::find_if(stored.begin(), stored.end(), [](const StoredRows& part) { return part.suffix == kWeightScale; });
  AQT_CHECK(scale != stored.end() &&
            (scheme.weights.scale_type != ScaleType::kWeight || scale->rows.dtype() == rows.dtype));
  switch (rows.dtype) {
    case DType::kF32: return Finder<float>(rows, first_row, scheme, rules, scale->rows, stored, global_scale).Run();
    case DType::kBF16: return Finder<BFloat16>(rows, first_row, scheme, rules, scale->rows, stored, global_scale).Run();
    case DType::kF16: return Finder<Float16>(rows, first_row, scheme, rules, scale->rows, stored, global_scale).Run();
    default: AQT_CHECK(false);
  }
}

std::vector<std::string> DescribeLoss(const WeightLoss& loss, const Scheme& scheme, io::FileDType dtype,
                                      const Shape& shape) {
  const bool whole = scheme.weights.strategy == WeightStrategy::kTensor;
  const int64_t total = UnitsOf(scheme.weights, shape).scale_shape.num_elements();
  constexpr char kKeep[] = "keep this weight in floating point";
  const absl::string_view scale_dtype =
      io::ToString(scheme.weights.scale_type == ScaleType::kE4M3 ? io::FileDType::kF8E4M3 : dtype);
  std::vector<std::string> lines;
  for (int i = 0; i < kNumLosses; ++i) {
    const WeightLoss::Units& units = loss.units[i];
    if (units.count == 0) continue;
    const Loss kind = static_cast<Loss>(i);
    // "3 of 64 rows"
    const std::string some = absl::StrCat(units.count, " of ", total, " ", UnitsName(scheme.weights.strategy));
    const std::string where =
        whole ? ""
              : absl::StrCat(" (",
                             absl::StrJoin(units.first, ", ",
                                           [&](std::string* out, const WeightLoss::Example& e) {
                                             absl::StrAppend(out, UnitName(scheme.weights, shape, e.unit));
                                           }),
                             units.count > static_cast<int64_t>(units.first.size()) ? ", ..." : "", ")");
    const WeightLoss::Example& first = units.first[0];
    switch (kind) {
      case Loss::kZeroed:
        lines.push_back(
            absl::StrCat(whole ? "all values become 0: the scale underflows "
                               : absl::StrCat("all values of ", some, where, " become 0: their scales underflow "),
                         scale_dtype, "; ", kKeep));
        break;
      case Loss::kOutliers:
        lines.push_back(absl::StrCat(
            !whole ? absl::StrCat("in ", some, " outliers make all other values 0: ", Outliers(units))
            : first.kept == 1
                ? absl::StrCat("a single outlier, ", At(first), ", makes all other values 0")
                : absl::StrCat(first.kept, " outliers, the largest ", At(first), ", make all other values 0"),
            "; use smaller groups, or ", kKeep));
        break;
      case Loss::kSubnormalScale:
        lines.push_back(absl::StrCat(whole ? "the scale is" : absl::StrCat("the scales of ", some, where, " are"),
                                     " subnormal in ", scale_dtype, ", and ", whole ? "loses" : "lose", " precision; ",
                                     kKeep));
        break;
      case Loss::kOverflow:
        lines.push_back(absl::StrCat(whole ? "a value" : absl::StrCat("values of ", some, where), " overflow",
                                     whole ? "s " : " ", io::ToString(dtype),
                                     " when multiplied out: ", Number(first.value), " x ", Number(first.scale), " at [",
                                     first.row, ",", first.column, "]; ", kKeep));
        break;
    }
  }
  return lines;
}

}  // namespace aqt::serving
