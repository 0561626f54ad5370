// Errors of the functions, relative to the C library's long double, and equal bits on all targets.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/elementwise/elementwise.h"
#include "aqt/kernels/simd/scalar_math.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class T>
std::vector<T> Map(UnaryKind kind, const std::vector<T>& x, Target target = BestTarget()) {
  std::vector<T> out(x.size());
  Unary(kind, kDTypeOf<T>, x.data(), static_cast<int64_t>(x.size()), out.data(), target);
  return out;
}

template <class T>
struct Format;  // bits of precision, and smallest exponent of frexp
template <>
struct Format<Float16> {
  static constexpr int kPrecision = 11, kMinExponent = -13;
};
template <>
struct Format<BFloat16> {
  static constexpr int kPrecision = 8, kMinExponent = -125;
};
template <>
struct Format<float> {
  static constexpr int kPrecision = 24, kMinExponent = -125;
};
template <>
struct Format<double> {
  static constexpr int kPrecision = 53, kMinExponent = -1021;
};

double ToDouble(double x) { return x; }
template <class T>
double ToDouble(T x) {
  return ToFloat(x);
}

// The distance of `got` from `want` in units of the last place of T at `want`; 0 for equal infinities and two NaNs. An
// infinity counts as the number that follows the largest finite one.
template <class T>
double UlpError(T got, long double want) {
  const double number = ToDouble(got);
  if (std::isnan(number) || std::isnan(want)) return std::isnan(number) && std::isnan(want) ? 0 : kInf;
  const double largest = MaxFinite(kDTypeOf<T>);
  int exponent;
  std::frexp(largest, &exponent);
  const long double beyond = std::ldexp(1.0L, exponent);
  const long double have = std::isinf(number) ? std::copysign(beyond, static_cast<long double>(number)) : number;
  if (std::fabs(want) >= beyond)
    return static_cast<double>(std::isinf(number) && (number > 0) == (want > 0) ? 0 : kInf);
  std::frexp(want, &exponent);
  const long double ulp = std::ldexp(1.0L, std::max(exponent, Format<T>::kMinExponent) - Format<T>::kPrecision);
  return static_cast<double>(std::fabs((have - want) / ulp));
}

struct Function {
  UnaryKind kind;
  long double (*reference)(long double);
  double ulp;               // the bound for f64
  double f32_ulp = 0.5001;  // for f32
};

long double Reciprocal(long double x) { return 1 / x; }

const Function kFunctions[] = {
    {UnaryKind::kSqrt, [](long double x) { return std::sqrt(x); }, 0.5001},
    {UnaryKind::kRsqrt, [](long double x) { return Reciprocal(std::sqrt(x)); }, 1.5},
    {UnaryKind::kCbrt, [](long double x) { return std::cbrt(x); }, 0.75},
    {UnaryKind::kExp, [](long double x) { return std::exp(x); }, 1, 0.8},
    {UnaryKind::kExpm1, [](long double x) { return std::expm1(x); }, 2, 1.24},
    {UnaryKind::kLog, [](long double x) { return std::log(x); }, 1, 0.81},
    {UnaryKind::kLog1p, [](long double x) { return std::log1p(x); }, 1.5, 1.39},
    {UnaryKind::kSin, [](long double x) { return std::sin(x); }, 1},
    {UnaryKind::kCos, [](long double x) { return std::cos(x); }, 1},
    {UnaryKind::kTanh, [](long double x) { return std::tanh(x); }, 2.5, 2.43},
    {UnaryKind::kLogistic, [](long double x) { return Reciprocal(1 + std::exp(-x)); }, 2.5, 2.41},
    {UnaryKind::kErf, [](long double x) { return std::erf(x); }, 2.5, 1.08},
};

template <class T>
double WorstError(const Function& function, const std::vector<T>& x) {
  const std::vector<T> y = Map(function.kind, x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = UlpError(y[i], function.reference(ToDouble(x[i])));
    if (error > worst) worst = error;
    EXPECT_LT(error, 3) << ToString(function.kind) << " of " << ToDouble(x[i]) << " is " << ToDouble(y[i]);
    if (error >= 3) break;
  }
  return worst;
}

TEST(FunctionsTest, EveryF16AndBf16IsRoundedAsGoodAsOnce) {
  std::vector<Float16> half(65536);
  std::vector<BFloat16> brain(65536);
  for (int code = 0; code < 65536; ++code) {
    half[code].bits = brain[code].bits = static_cast<uint16_t>(code);
  }
  for (const Function& function : kFunctions) {
    EXPECT_LE(WorstError(function, half), 0.5003) << ToString(function.kind);
    EXPECT_LE(WorstError(function, brain), 0.5003) << ToString(function.kind);
  }
}

// f32 codes at an odd distance, so that all exponents and many mantissas occur.
std::vector<float> CodesApart(uint32_t distance) {
  std::vector<float> x;
  for (uint64_t code = 0; code <= 0xffffffffu; code += distance) {
    x.push_back(__builtin_bit_cast(float, static_cast<uint32_t>(code)));
  }
  return x;
}

TEST(FunctionsTest, F32IsWithinItsBound) {
  const std::vector<float> x = CodesApart(21499);
  for (const Function& function : kFunctions) {
    const double worst = WorstError(function, x);
    EXPECT_LE(worst, function.f32_ulp) << ToString(function.kind);
    EXPECT_GE(worst, 0.49) << ToString(function.kind);  // checks that the test does measure errors
  }
}

// Whether the bytes are equal, or both values are NaN.
template <class T>
::testing::AssertionResult Same(const std::vector<T>& a, const std::vector<T>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if constexpr (!std::is_same_v<T, int32_t> && !std::is_same_v<T, uint8_t>) {
      if (std::isnan(ToDouble(a[i])) && std::isnan(ToDouble(b[i]))) continue;
    }
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) return ::testing::AssertionFailure() << "element " << i;
  }
  return ::testing::AssertionSuccess();
}

// For any array length and any position within the array.
TEST(FunctionsTest, F32IsTheSameAloneAndInAVector) {
  std::vector<float> x = CodesApart(214999);
  for (const float v : CodesApart(1310719)) x.push_back(v);
  for (int i = -2000; i <= 2000; ++i) x.push_back(0.1f * i);  // around the ends of the range
  for (const Function& function : kFunctions) {
    for (const Target target : SupportedTargets()) {
      std::vector<float> alone(x.size());
      for (size_t i = 0; i < x.size(); ++i) Unary(function.kind, DType::kF32, &x[i], 1, &alone[i], target);
      EXPECT_TRUE(Same(Map(function.kind, x, target), alone)) << ToString(function.kind) << " " << target;
    }
  }
}

// All exponents, subnormal numbers and the ends of the ranges.
TEST(FunctionsTest, F32IsTheSameOnAllTargets) {
  const std::vector<float> x = CodesApart(10007);
  for (const Function& function : kFunctions) {
    const std::vector<float> want = Map(function.kind, x, Target::kScalar);
    for (const Target target : SupportedTargets()) {
      EXPECT_TRUE(Same(Map(function.kind, x, target), want)) << ToString(function.kind) << " " << target;
    }
  }
}

// Doubles of both signs and all magnitudes from 2^-1074 to 2^1024, more densely from 2^-20 to 2^10.
std::vector<double> Doubles(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> any(-1074, 1024), middle(-20, 10);
  std::vector<double> x;
  for (int64_t i = 0; i < n; ++i) {
    const double magnitude = std::exp2(i % 4 == 0 ? any(random) : middle(random));
    x.push_back(random() % 2 == 0 ? magnitude : -magnitude);
  }
  return x;
}

TEST(FunctionsTest, F64IsWithinTheStatedBounds) {
  std::vector<double> x = Doubles(100000, 1);
  for (int i = -700; i < 700; ++i) x.push_back(i);
  std::vector<double> plain;  // results of exp that are not subnormal
  for (const double v : x) {
    if (!(v < -708 && v > -746)) plain.push_back(v);
  }
  for (const Function& function : kFunctions) {
    const double worst = WorstError(function, function.kind == UnaryKind::kExp ? plain : x);
    EXPECT_LE(worst, function.ulp) << ToString(function.kind);
    EXPECT_GE(worst, 0.4) << ToString(function.kind);
  }
}

// Angles as close to multiples of pi/2 as doubles of their magnitude can be, below and above the limit of the plain
// reduction, and the closest of all doubles (6381956970095103 * 2^797).
TEST(FunctionsTest, SineAndCosineOfHardAngles) {
  std::vector<double> x = {0x1.6ac5b262ca1ffp+849, 1e22, 0x1p20, std::nextafter(0x1p20, 2e6), 0x1.fffffffffffffp+1023};
  for (int64_t k = 1; k < 40000000; k = k * 5 / 4 + 1) x.push_back(static_cast<double>(k * 1.57079632679489661923L));
  for (size_t i = x.size(); i-- > 0;) x.push_back(-x[i]);
  for (const UnaryKind kind : {UnaryKind::kSin, UnaryKind::kCos}) {
    const Function& function =
        *std::find_if(std::begin(kFunctions), std::end(kFunctions), [&](const Function& f) { return f.kind == kind; });
    EXPECT_LE(WorstError(function, x), 1) << ToString(kind);
  }
  EXPECT_EQ(Map<double>(UnaryKind::kCos, {0x1.6ac5b262ca1ffp+849})[0], -0x1.14ae72e6ba22fp-61);
}

TEST(FunctionsTest, ExpAndLogAreThoseOfScalarMath) {
  std::vector<double> x = Doubles(100000, 2);
  for (int i = -7600; i < 7200; ++i) x.push_back(i / 10.0);
  for (const double special : {0.0, -0.0, 1.0, kInf, -kInf, 709.782712893384, -745.133219101942}) x.push_back(special);
  const std::vector<double> exp = Map(UnaryKind::kExp, x), log = Map(UnaryKind::kLog, x);
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(__builtin_bit_cast(uint64_t, exp[i]), __builtin_bit_cast(uint64_t, Exp(x[i]))) << x[i];
    if (x[i] < 0) ASSERT_TRUE(std::isnan(log[i])) << x[i];
    else ASSERT_EQ(__builtin_bit_cast(uint64_t, log[i]), __builtin_bit_cast(uint64_t, Log(x[i]))) << x[i];
  }
}

TEST(FunctionsTest, SpecialValues) {
  struct Case {
    UnaryKind kind;
    double x, want;
  };
  for (const Case& c : std::vector<Case>{
           {UnaryKind::kSqrt, -0.0, -0.0},   {UnaryKind::kSqrt, -1, kNan},
           {UnaryKind::kSqrt, kInf, kInf},   {UnaryKind::kRsqrt, 0, kInf},
           {UnaryKind::kRsqrt, -0.0, -kInf}, {UnaryKind::kRsqrt, kInf, 0},
           {UnaryKind::kCbrt, -0.0, -0.0},   {UnaryKind::kCbrt, -kInf, -kInf},
           {UnaryKind::kCbrt, -27, -3},      {UnaryKind::kCbrt, 0x1p-1074, 0x1p-358},
           {UnaryKind::kRsqrt, -2, kNan},    {UnaryKind::kExp, -kInf, 0},
           {UnaryKind::kExp, kInf, kInf},    {UnaryKind::kExp, -0.0, 1},
           {UnaryKind::kExpm1, -0.0, -0.0},  {UnaryKind::kExpm1, -kInf, -1},
           {UnaryKind::kExpm1, kInf, kInf},  {UnaryKind::kExpm1, 0x1p-1074, 0x1p-1074},
           {UnaryKind::kLog, -0.0, -kInf},   {UnaryKind::kLog, -kInf, kNan},
           {UnaryKind::kLog1p, -0.0, -0.0},  {UnaryKind::kLog1p, -1, -kInf},
           {UnaryKind::kLog1p, kInf, kInf},  {UnaryKind::kLog1p, -1.5, kNan},
           {UnaryKind::kLog1p, -kInf, kNan}, {UnaryKind::kSin, -0.0, -0.0},
           {UnaryKind::kSin, kInf, kNan},    {UnaryKind::kSin, -kInf, kNan},
           {UnaryKind::kCos, 0, 1},          {UnaryKind::kCos, kInf, kNan},
           {UnaryKind::kTanh, -0.0, -0.0},   {UnaryKind::kTanh, kInf, 1},
           {UnaryKind::kTanh, -kInf, -1},    {UnaryKind::kTanh, 0x1p-1074, 0x1p-1074},
           {UnaryKind::kLogistic, 0, 0.5},   {UnaryKind::kLogistic, -kInf, 0},
           {UnaryKind::kLogistic, kInf, 1},  {UnaryKind::kErf, -0.0, -0.0},
           {UnaryKind::kErf, kInf, 1},       {UnaryKind::kErf, -kInf, -1},
       }) {
    for (const bool f32 : {false, true}) {
      if (f32 && c.x == 0x1p-1074) continue;
      const double got = f32 ? Map<float>(c.kind, {static_cast<float>(c.x)})[0] : Map<double>(c.kind, {c.x})[0];
      if (std::isnan(c.want)) {
        EXPECT_TRUE(std::isnan(got)) << ToString(c.kind) << " of " << c.x;
      } else {
        EXPECT_EQ(got, c.want) << ToString(c.kind) << " of " << c.x;
        EXPECT_EQ(std::signbit(got), std::signbit(c.want)) << ToString(c.kind) << " of " << c.x;
      }
    }
  }
  for (const Function& function : kFunctions) {
    EXPECT_TRUE(std::isnan(Map<double>(function.kind, {kNan})[0])) << ToString(function.kind);
    EXPECT_TRUE(std::isnan(Map<float>(function.kind, {static_cast<float>(kNan)})[0])) << ToString(function.kind);
  }
}

double Pow1(double x, double y) {
  double out;
  Binary(BinaryKind::kPow, DType::kF64, &x, &y, 1, &out);
  return out;
}

TEST(PowTest, IsWithinTheStatedBounds) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> exponent(-300, 300), near_one(-0x1p-20, 0x1p-20), result(-1073, 1023);
  double worst = 0, worst_f32 = 0;
  for (int i = 0; i < 100000; ++i) {
    const double x = i % 2 == 0 ? std::exp2(exponent(random)) : 1 + near_one(random);
    const double y = x == 1 ? 5 : result(random) / std::log2(x);
    worst = std::max(worst, UlpError(Pow1(x, y), std::pow(static_cast<long double>(x), static_cast<long double>(y))));
    const float x32 = static_cast<float>(x), y32 = static_cast<float>(y);
    float out;
    Binary(BinaryKind::kPow, DType::kF32, &x32, &y32, 1, &out);
    worst_f32 =
        std::max(worst_f32, UlpError(out, std::pow(static_cast<long double>(x32), static_cast<long double>(y32))));
  }
  EXPECT_LE(worst, 2);
  EXPECT_GE(worst, 0.4);
  EXPECT_LE(worst_f32, 0.5001);
  EXPECT_GE(worst_f32, 0.4);
}

// All pairs of special numbers. The C library's results are exact for them, or within a unit in the last place.
TEST(PowTest, SpecialCasesAreThoseOfC) {
  const double numbers[] = {
      0,       -0.0,      1,      -1,     2,          -2,         0.5,          -0.5,        3,
      -3,      1.5,       -1.5,   kInf,   -kInf,      kNan,       1e300,        -1e300,      1e-300,
      -1e-300, 0x1p-1074, 0x1p52, 0x1p53, 0x1p52 + 1, 1 - 0x1p53, 0x1p51 + 0.5, -0x1p51 - 1, 0x1.fffffffffffffp-1,
      0x1p80};
  for (const double x : numbers) {
    for (const double y : numbers) {
      const double got = Pow1(x, y), want = std::pow(x, y);
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << x << " ^ " << y << ": " << got;
        continue;
      }
      EXPECT_LE(UlpError(got, want), 3) << x << " ^ " << y << ": " << got;
      EXPECT_EQ(std::signbit(got), std::signbit(want)) << x << " ^ " << y << ": " << got;
      if (want == 0 || std::isinf(want)) {
        EXPECT_EQ(got, want) << x << " ^ " << y;
      }
    }
  }
}

// ---- targets

// Arrays of random codes and of moderate numbers. The odd length leaves tails.
constexpr int64_t kLength = 1031;
template <class T>
std::vector<T> Codes(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> x(kLength);
  for (int64_t i = 0; i < kLength; ++i) {
    const uint64_t code = random();
    std::memcpy(static_cast<void*>(&x[i]), &code, sizeof(T));
    if (i % 2 == 0) x[i] = ConvertElement<T>(static_cast<double>(static_cast<int64_t>(code)) * 0x1p-60);
  }
  return x;
}

template <class T>
void ExpectTargetsAgree() {
  constexpr DType kDType = kDTypeOf<T>;
  const std::vector<T> a = Codes<T>(1), b = Codes<T>(2), c = Codes<T>(3);
  const auto check = [&](absl::string_view name, auto out, auto run) {
    run(out.data(), Target::kScalar);
    const auto want = out;
    for (const Target target : SupportedTargets()) {
      std::fill(out.begin(), out.end(), typename decltype(out)::value_type{});
      run(out.data(), target);
      EXPECT_TRUE(Same(out, want)) << name << " of " << ToString(kDType) << " on " << target;
    }
  };
  const std::vector<T> numbers(kLength);
  const std::vector<uint8_t> bits(kLength);
  for (int i = 0; i < kNumUnaryKinds; ++i) {
    const UnaryKind kind = static_cast<UnaryKind>(i);
    if (!Takes(kind, kDType)) continue;
    check(ToString(kind), numbers, [&](T* out, Target target) { Unary(kind, kDType, a.data(), kLength, out, target); });
    // In place.
    check(ToString(kind), numbers, [&](T* out, Target target) {
      std::copy(a.begin(), a.end(), out);
      Unary(kind, kDType, out, kLength, out, target);
    });
  }
  for (int i = 0; i < kNumBinaryKinds; ++i) {
    const BinaryKind kind = static_cast<BinaryKind>(i);
    if (!Takes(kind, kDType)) continue;
    check(ToString(kind), numbers,
          [&](T* out, Target target) { Binary(kind, kDType, a.data(), b.data(), kLength, out, target); });
  }
  for (int i = 0; i < kNumCompareKinds; ++i) {
    const CompareKind kind = static_cast<CompareKind>(i);
    check(ToString(kind), bits, [&](uint8_t* out, Target target) {
      Compare(kind, kDType, a.data(), b.data(), kLength, reinterpret_cast<bool*>(out), target);
    });
  }
  check("is_finite", bits, [&](uint8_t* out, Target target) {
    IsFinite(kDType, a.data(), kLength, reinterpret_cast<bool*>(out), target);
  });
  check("clamp", numbers,
        [&](T* out, Target target) { Clamp(kDType, a.data(), b.data(), c.data(), kLength, out, target); });
  std::vector<uint8_t> pred(kLength);
  for (int64_t i = 0; i < kLength; ++i) pred[i] = static_cast<uint8_t>(i % 3 == 0);
  check("select", numbers, [&](T* out, Target target) {
    Select(kDType, reinterpret_cast<const bool*>(pred.data()), a.data(), b.data(), kLength, out, target);
  });
  for (const int64_t exponent : {0, 1, 2, 5, 30, -1, -7}) {
    if (exponent < 0 && !IsFloat(kDType)) continue;
    check("integer_pow", numbers,
          [&](T* out, Target target) { IntegerPow(kDType, exponent, a.data(), kLength, out, target); });
  }
  if (!IsFloat(kDType)) return;
  for (const Precision precision : {Precision{4, 3}, Precision{5, 2}, Precision{8, 7}, Precision{1, 0}}) {
    check("reduce_precision", numbers,
          [&](T* out, Target target) { ReducePrecision(kDType, precision, a.data(), kLength, out, target); });
  }
}

TEST(TargetsTest, AllGiveTheSameBits) {
  ExpectTargetsAgree<Float16>();
  ExpectTargetsAgree<BFloat16>();
  ExpectTargetsAgree<float>();
  ExpectTargetsAgree<double>();
  ExpectTargetsAgree<int32_t>();
}

}  // namespace
}  // namespace aqt::kernels
