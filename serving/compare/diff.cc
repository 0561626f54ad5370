#include "serving/compare/diff.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "serving/compare/element_values.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/parallel.h"
#include "serving/tools/report_json-inl.h"
#include "serving/tools/text.h"

namespace aqt::serving {
namespace {

using io::FileDType;
using io::TensorInfo;

constexpr int64_t kMemoryBudget = 16 << 20;
constexpr int64_t kBlockBytes = 256 << 10;
constexpr int64_t kPieceBytes = 8 << 20;
constexpr int64_t kBlockNumbers = 1 << 13;
constexpr int64_t kPieceNumbers = 1 << 20;  // a multiple of 8: pieces of 4-bit and 6-bit elements begin at a byte
constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// What one piece of a tensor adds to its figures. Pieces are added in order.
struct Sums {
  int64_t different = 0, non_finite = 0, first = kNone;
  double max = 0, aa = 0, ee = 0;

  void Add(const Sums& other) {
    different += other.different;
    non_finite += other.non_finite;
    first = std::min(first, other.first);
    max = std::max(max, other.max);
    aa += other.aa;
    ee += other.ee;
  }
};

// A tensor that both sources have.
struct Pair {
  const TensorInfo* a;
  const TensorInfo* b;
  bool same_spec() const { return a->dtype == b->dtype && a->shape == b->shape; }
};

// [begin, end) of a pair: bytes or numbers.
struct Piece {
  size_t pair;
  int64_t begin, end;
  Sums sums;
};

void AddPieces(size_t pair, int64_t n, int64_t piece, std::vector<Piece>& pieces) {
  for (int64_t begin = 0; begin < n; begin += piece) pieces.push_back({pair, begin, std::min(n, begin + piece), {}});
}

class Comparer {
 public:
  Comparer(const io::TensorSource& a, const io::TensorSource& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options) {}

  // Whether each pair's bytes differ and, with `bitwise`, how.
  absl::Status CompareBytes(const Pair& pair, Piece& piece) const {
    std::vector<uint8_t> x, y;
    for (int64_t at = piece.begin; at < piece.end; at += kBlockBytes) {
      AQT_RETURN_IF_ERROR(CheckCancelled(options_.cancelled));
      x.resize(std::min(kBlockBytes, piece.end - at));
      y.resize(x.size());
      AQT_RETURN_IF_ERROR(a_.Read(*pair.a, at, absl::MakeSpan(x)));
      AQT_RETURN_IF_ERROR(b_.Read(*pair.b, at, absl::MakeSpan(y)));
      if (x == y) continue;
      Sums& sums = piece.sums;
      for (size_t i = 0; i < x.size(); ++i) {
        if (x[i] == y[i]) continue;
        if (sums.different++ == 0) sums.first = at + static_cast<int64_t>(i);
      }
      if (!options_.bitwise) return absl::OkStatus();  // that they differ is enough
    }
    return absl::OkStatus();
  }

  absl::Status CompareNumbers(const Pair& pair, Piece& piece) const {
    const auto wide = [](FileDType dtype) { return dtype == FileDType::kI64 || dtype == FileDType::kU64; };
    return wide(pair.a->dtype) || wide(pair.b->dtype) ? Compare<long double>(pair, piece)
                                                      : Compare<double>(pair, piece);
  }

 private:
  template <class T>
  absl::Status ReadNumbers(const io::TensorSource& source, const TensorInfo& tensor, int64_t at,
                           std::vector<uint8_t>& bytes, absl::Span<T> numbers) const {
    const int64_t bits = io::BitWidth(tensor.dtype) / NumbersPerElement(tensor.dtype);
    bytes.resize((static_cast<int64_t>(numbers.size()) * bits + 7) / 8);
    AQT_RETURN_IF_ERROR(source.Read(tensor, at * bits / 8, absl::MakeSpan(bytes)));
    ElementValues<T>(tensor.dtype, bytes, numbers);
    return absl::OkStatus();
  }

  template <class T>
  absl::Status Compare(const Pair& pair, Piece& piece) const {
    std::vector<uint8_t> bytes;
    std::vector<T> x, y;
    for (int64_t at = piece.begin; at < piece.end; at += kBlockNumbers) {
      AQT_RETURN_IF_ERROR(CheckCancelled(options_.cancelled));
      x.resize(std::min(kBlockNumbers, piece.end - at));
      y.resize(x.size());
      AQT_RETURN_IF_ERROR(ReadNumbers(a_, *pair.a, at, bytes, absl::MakeSpan(x)));
      AQT_RETURN_IF_ERROR(ReadNumbers(b_, *pair.b, at, bytes, absl::MakeSpan(y)));
      Sums& sums = piece.sums;
      for (size_t i = 0; i < x.size(); ++i) {
        const bool finite = std::isfinite(x[i]) && std::isfinite(y[i]);
        const double error = finite ? static_cast<double>(x[i] - y[i]) : 0;
        if (finite) {
          sums.aa += static_cast<double>(x[i]) * static_cast<double>(x[i]);
          sums.ee += error * error;
          sums.max = std::max(sums.max, std::abs(error));
        }
        if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
        if (sums.different++ == 0) sums.first = at + static_cast<int64_t>(i);
        sums.non_finite += !finite;
      }
    }
    return absl::OkStatus();
  }

  const io::TensorSource& a_;
  const io::TensorSource& b_;
  const DiffOptions& options_;
};

// One pass over the tensors.
struct Pass {
  bool of_numbers;         // else of bytes
  int64_t bytes_per_task;  // of memory
  absl::FunctionRef<absl::Status(const Pair&, Piece&)> run;
};

// Runs the pieces and adds up each pair's sums.
absl::Status RunPass(const std::vector<Pair>& pairs, const Pass& pass, const DiffOptions& options, Progress* progress,
                     std::vector<Piece>& pieces, std::vector<Sums>& sums) {
  const auto bytes = [&](const Pair& pair, int64_t at) {
    return pass.of_numbers ? at / NumbersPerElement(pair.a->dtype) * io::BitWidth(pair.a->dtype) / 8 : at;
  };
  AQT_RETURN_IF_ERROR(ParallelRun(
      static_cast<int64_t>(pieces.size()), {.threads = options.jobs, .memory_budget = kMemoryBudget},
      [&](int64_t) { return pass.bytes_per_task; },
      [&](int64_t i) {
        Piece& piece = pieces[i];
        const Pair& pair = pairs[piece.pair];
        AQT_RETURN_IF_ERROR(pass.run(pair, piece));
        if (progress != nullptr) progress->Add(bytes(pair, piece.end) - bytes(pair, piece.begin), pair.a->name);
        return absl::OkStatus();
      }));
  for (const Piece& piece : pieces) sums[piece.pair].Add(piece.sums);
  return absl::OkStatus();
}

double Snr(const Sums& sums) {
  if (sums.ee == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(sums.aa / sums.ee);
}

TensorDiff MakeDiff(const Pair& pair, const DiffOptions& options, const Sums& sums) {
  TensorDiff diff;
  diff.a = *pair.a;
  diff.b = *pair.b;
  diff.compared = options.bitwise ? pair.a->num_bytes() == pair.b->num_bytes() : pair.a->shape == pair.b->shape;
  if (!diff.compared) return diff;
  diff.count = options.bitwise ? pair.a->num_bytes() : pair.a->shape.num_elements() * NumbersPerElement(pair.a->dtype);
  diff.different = sums.different;
  diff.first = sums.first == kNone ? -1 : sums.first;
  if (options.bitwise) return diff;
  diff.non_finite = sums.non_finite;
  diff.max_abs_difference = sums.max;
  if (IsFloatDType(pair.a->dtype) && IsFloatDType(pair.b->dtype)) diff.snr_db = Snr(sums);
  return diff;
}

// "[1,2]" for an element of a tensor.
std::string IndexText(const TensorDiff& diff, bool bitwise) {
  if (bitwise) return absl::StrCat("byte ", diff.first);
  int64_t index = diff.first / NumbersPerElement(diff.a.dtype);
  std::vector<int64_t> at(diff.a.shape.rank());
  for (int64_t axis = diff.a.shape.rank() - 1; axis >= 0; --axis) {
    at[axis] = index % diff.a.shape[axis];
    index /= diff.a.shape[axis];
  }
  return absl::StrCat("[", absl::StrJoin(at, ","), "]");
}

std::string SpecText(const io::TensorSpec& spec) {
  return absl::StrCat(io::ToString(spec.dtype), spec.shape.ToString());
}

std::string Decibels(double snr) { return std::isinf(snr) ? (snr > 0 ? "inf" : "-inf") : absl::StrFormat("%.2f", snr); }

}  // namespace

absl::StatusOr<DiffReport> Diff(const io::TensorSource& a, const io::TensorSource& b, const DiffOptions& options) {
  DiffReport report;
  report.path_a = a.path();
  report.path_b = b.path();
  report.bitwise = options.bitwise;
  std::vector<Pair> pairs;
  int64_t work = 0;
  for (const TensorInfo& tensor : a.tensors()) {
    const TensorInfo* other = b.Find(tensor.name);
    if (other == nullptr) {
      report.only_a.push_back(tensor);
      continue;
    }
    pairs.push_back({&tensor, other});
    work += (options.bitwise ? 1 : 2) * tensor.num_bytes();
  }
  for (const TensorInfo& tensor : b.tensors()) {
    if (a.Find(tensor.name) == nullptr) report.only_b.push_back(tensor);
  }
  const std::unique_ptr<Progress> progress = options.make_progress ? options.make_progress(work) : nullptr;

  const Comparer comparer(a, b, options);
  std::vector<Piece> pieces;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const bool whole = options.bitwise ? pairs[i].a->num_bytes() == pairs[i].b->num_bytes() : pairs[i].same_spec();
    if (whole) AddPieces(i, pairs[i].a->num_bytes(), kPieceBytes, pieces);
    if (!whole && progress != nullptr) progress->Add(pairs[i].a->num_bytes(), pairs[i].a->name);
  }
  std::vector<Sums> of_bytes(pairs.size());
  const auto compare_bytes = [&](const Pair& pair, Piece& piece) { return comparer.CompareBytes(pair, piece); };
  AQT_RETURN_IF_ERROR(
      RunPass(pairs, {false, 2 * kBlockBytes, compare_bytes}, options, progress.get(), pieces, of_bytes));
  std::vector<Sums> of_numbers = of_bytes;
  if (!options.bitwise) {
    pieces.clear();
    of_numbers.assign(pairs.size(), Sums());
    for (size_t i = 0; i < pairs.size(); ++i) {
      const TensorInfo& tensor = *pairs[i].a;
      if (tensor.shape != pairs[i].b->shape || (pairs[i].same_spec() && of_bytes[i].different == 0)) {
        if (progress != nullptr) progress->Add(tensor.num_bytes(), tensor.name);
        continue;
      }
      AddPieces(i, tensor.shape.num_elements() * NumbersPerElement(tensor.dtype), kPieceNumbers, pieces);
    }
    const auto compare_numbers = [&](const Pair& pair, Piece& piece) { return comparer.CompareNumbers(pair, piece); };
    constexpr int64_t kBytesPerTask = kBlockNumbers * (16 + 2 * sizeof(long double));
    AQT_RETURN_IF_ERROR(
        RunPass(pairs, {true, kBytesPerTask, compare_numbers}, options, progress.get(), pieces, of_numbers));
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Pair& pair = pairs[i];
    const bool other_dtype = pair.a->dtype != pair.b->dtype && !options.ignore_dtypes;
    if (pair.a->shape == pair.b->shape && !other_dtype && of_numbers[i].different == 0) {
      ++report.num_equal;
      report.num_other_bytes += of_bytes[i].different > 0 || !pair.same_spec();
    } else {
      report.different.push_back(MakeDiff(pair, options, of_numbers[i]));
    }
  }
  return report;
}

void PrintDiff(const DiffReport& report, std::ostream& out) {
  std::vector<std::string> header = {"tensor", "A", "B", report.bitwise ? "bytes that differ" : "elements that differ"};
  if (!report.bitwise) header.insert(header.end(), {"max abs difference", "SNR dB"});
  Table table(header);
  for (const TensorDiff& diff : report.different) {
    std::vector<std::string> row = {diff.a.name, SpecText(diff.a), SpecText(diff.b),
                                    !diff.compared        ? "-"
                                    : diff.different == 0 ? absl::StrCat("0 of ", diff.count)
                                                          : absl::StrCat(diff.different, " of ", diff.count, ", first ",
                                                                         IndexText(diff, report.bitwise))};
    if (!report.bitwise) {
      row.push_back(diff.compared ? absl::StrFormat("%.6g", diff.max_abs_difference) : "-");
      if (diff.non_finite > 0) absl::StrAppend(&row.back(), ", ", diff.non_finite, " not finite");
      row.push_back(diff.snr_db.has_value() ? Decibels(*diff.snr_db) : "-");
    }
    table.Add(std::move(row));
  }
  if (!report.different.empty()) table.Print(out);
  for (const io::TensorSpec& spec : report.only_a) {
    out << "only in A: " << io::Printable(spec.name) << " " << SpecText(spec) << "\n";
  }
  for (const io::TensorSpec& spec : report.only_b) {
    out << "only in B: " << io::Printable(spec.name) << " " << SpecText(spec) << "\n";
  }
  const auto value = [](const std::string& text) { return text.empty() ? "absent" : io::Printable(text); };
  for (const ConfigDiff& diff : report.config) {
    out << "config.json: " << io::Printable(diff.key) << ": " << value(diff.a) << " in A, " << value(diff.b)
        << " in B\n";
  }
  for (const std::string& note : report.notes) out << "note: " << io::PrintableLine(note) << "\n";
  out << report.num_equal << " tensors equal" << (report.bitwise ? " byte for byte" : "");
  if (report.num_other_bytes > 0) out << " (" << report.num_other_bytes << " of them only as numbers)";
  out << ", " << report.different.size() << " differ, " << report.only_a.size() << " only in A, "
      << report.only_b.size() << " only in B";
  if (!report.config.empty()) out << "; config.json differs";
  out << "\n";
}

namespace {

ReportJson SpecToJson(const io::TensorSpec& spec) {
  return {{"dtype", std::string(io::ToString(spec.dtype))},
          {"shape", std::vector<int64_t>(spec.shape.begin(), spec.shape.end())}};
}

ReportJson SpecsToJson(const std::vector<io::TensorSpec>& specs) {
  ReportJson json = ReportJson::array();
  for (const io::TensorSpec& spec : specs) {
    ReportJson entry = {{"name", spec.name}};
    entry.update(SpecToJson(spec));
    json.push_back(std::move(entry));
  }
  return json;
}

ReportJson DiffToJson(const TensorDiff& diff, bool bitwise) {
  ReportJson json = {
      {"name", diff.a.name}, {"a", SpecToJson(diff.a)}, {"b", SpecToJson(diff.b)}, {"compared", diff.compared}};
  if (!diff.compared) return json;
  json[bitwise ? "bytes" : "elements"] = diff.count;
  json["different"] = diff.different;
  json["first"] = diff.first < 0 ? ReportJson() : ReportJson(diff.first);
  if (bitwise) return json;
  json["non_finite"] = diff.non_finite;
  json["max_abs_difference"] = JsonNumber(diff.max_abs_difference);
  json["snr_db"] = diff.snr_db.has_value() ? JsonNumber(*diff.snr_db) : ReportJson();
  return json;
}

}  // namespace

std::string DiffToJson(const DiffReport& report) {
  ReportJson different = ReportJson::array(), config = ReportJson::array();
  for (const TensorDiff& diff : report.different) different.push_back(DiffToJson(diff, report.bitwise));
  const auto value = [](const std::string& text) { return text.empty() ? ReportJson() : ReportJson(text); };
  for (const ConfigDiff& diff : report.config) {
    config.push_back({{"key", diff.key}, {"a", value(diff.a)}, {"b", value(diff.b)}});
  }
  ReportJson json = NewReport();
  json["a"] = report.path_a;
  json["b"] = report.path_b;
  json["bitwise"] = report.bitwise;
  json["same"] = report.same();
  json["num_equal"] = report.num_equal;
  json["num_equal_only_as_numbers"] = report.num_other_bytes;
  json["different"] = std::move(different);
  json["only_in_a"] = SpecsToJson(report.only_a);
  json["only_in_b"] = SpecsToJson(report.only_b);
  json["config"] = std::move(config);
  json["notes"] = report.notes;
  return ReportText(json);
}

}  // namespace aqt::serving
