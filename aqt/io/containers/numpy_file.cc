#include "aqt/io/containers/numpy_file.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/archives/bytes.h"
#include "aqt/io/containers/container_source.h"
#include "aqt/io/json.h"

namespace aqt::io {
namespace {

constexpr int64_t kMaxHeaderBytes = 64 << 10;
constexpr absl::string_view kNpySuffix = ".npy";

struct NumPyType {
  absl::string_view name;
  FileDType dtype;
};
constexpr NumPyType kTypes[] = {
    {"b1", FileDType::kBool}, {"i1", FileDType::kI8},  {"u1", FileDType::kU8},  {"i2", FileDType::kI16},
    {"u2", FileDType::kU16},  {"f2", FileDType::kF16}, {"i4", FileDType::kI32}, {"u4", FileDType::kU32},
    {"f4", FileDType::kF32},  {"i8", FileDType::kI64}, {"u8", FileDType::kU64}, {"f8", FileDType::kF64},
    {"c8", FileDType::kC64},
};

absl::Status Damaged(absl::string_view cause) {
  return absl::DataLossError(absl::StrCat("the array's header ", cause));
}

// The dict of a header, a Python literal: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }.
class HeaderParser {
 public:
  explicit HeaderParser(absl::string_view text) : text_(text) {}

  absl::Status Parse() {
    if (!Take('{')) return Wrong("'{'");
    while (!Take('}')) {
      AQT_ASSIGN_OR_RETURN(const std::string key, String());
      if (!Take(':')) return Wrong("':'");
      AQT_RETURN_IF_ERROR(Member(key));
      if (Take(',')) continue;
      if (!Take('}')) return Wrong("',' or '}'");
      break;
    }
    SkipSpace();
    if (at_ != text_.size()) return Wrong("the end");
    if (!has_descr_ || !has_order_ || !has_shape_) return Damaged("lacks descr, fortran_order or shape");
    return absl::OkStatus();
  }

  const std::string& descr() const { return descr_; }
  bool fortran_order() const { return fortran_order_; }
  const std::vector<int64_t>& shape() const { return shape_; }

 private:
  absl::Status Member(const std::string& key) {
    bool* const seen = key == "descr"           ? &has_descr_
                       : key == "fortran_order" ? &has_order_
                       : key == "shape"         ? &has_shape_
                                                : nullptr;
    if (seen == nullptr) return Damaged(absl::StrCat("has the unknown key ", QuoteForMessage(key)));
    if (*seen) return Damaged(absl::StrCat("has the key ", key, " twice"));
    *seen = true;
    if (seen == &has_order_) return Bool();
    if (seen == &has_shape_) return Tuple();
    SkipSpace();
    if (at_ < text_.size() && (text_[at_] == '[' || text_[at_] == '(')) {
      return absl::UnimplementedError("the array has a structured type; save each of its fields as an array");
    }
    AQT_ASSIGN_OR_RETURN(descr_, String());
    return absl::OkStatus();
  }

  void SkipSpace() {
    while (at_ < text_.size() && absl::ascii_isspace(text_[at_])) ++at_;
  }

  bool Take(char c) {
    SkipSpace();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool TakeWord(absl::string_view word) {
    SkipSpace();
    if (!absl::StartsWith(text_.substr(at_), word)) return false;
    at_ += word.size();
    return true;
  }

  absl::Status Wrong(absl::string_view expected) const {
    return Damaged(absl::StrCat("is not valid at character ", at_, ", where ", expected, " is expected"));
  }

  absl::StatusOr<std::string> String() {
    SkipSpace();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') return Wrong("a string");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == absl::string_view::npos) return Wrong("a complete string");
    std::string value(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return value;
  }

  absl::Status Bool() {
    fortran_order_ = TakeWord("True");
    return fortran_order_ || TakeWord("False") ? absl::OkStatus() : Wrong("True or False");
  }

  absl::Status Tuple() {
    if (!Take('(')) return Wrong("'('");
    while (!Take(')')) {
      SkipSpace();
      size_t end = at_;
      while (end < text_.size() && absl::ascii_isdigit(text_[end])) ++end;
      int64_t extent = 0;
      if (!absl::SimpleAtoi(text_.substr(at_, end - at_), &extent)) return Wrong("an extent");
      at_ = end;
      Take('L');  // as Python 2 wrote integers
      shape_.push_back(extent);
      if (shape_.size() > static_cast<size_t>(kMaxTensorRank)) return Damaged("has too many extents");
      if (Take(',')) continue;
      if (!Take(')')) return Wrong("',' or ')'");
      break;
    }
    return absl::OkStatus();
  }

  const absl::string_view text_;
  size_t at_ = 0;
  bool has_descr_ = false, has_order_ = false, has_shape_ = false;
  std::string descr_;
  bool fortran_order_ = false;
  std::vector<int64_t> shape_;
};

absl::StatusOr<FileDType> ParseDescr(const std::string& descr, std::optional<FileDType> raw_dtype) {
  absl::string_view name = descr;
  const char order = name.empty() ? '\0' : name[0];
  if (order == '<' || order == '|' || order == '>' || order == '=') name.remove_prefix(1);
  for (const NumPyType& type : kTypes) {
    if (type.name != name) continue;
    if (order != '>' || BitWidth(type.dtype) == 8) return type.dtype;
    return absl::UnimplementedError(absl::StrCat("the array's type ", QuoteForMessage(descr),
                                                 " is big-endian; save it as '<", name,
                                                 "' (array.astype(array.dtype.newbyteorder('<')))"));
  }
  int bytes = 0;
  if (absl::StartsWith(name, "V") && absl::SimpleAtoi(name.substr(1), &bytes) && bytes > 0) {
    if (raw_dtype.has_value() && BitWidth(*raw_dtype) == 8 * bytes) return *raw_dtype;
    return absl::UnimplementedError(absl::StrCat("the array's type is ", QuoteForMessage(descr), ", raw elements of ",
                                                 bytes, bytes == 1 ? " byte" : " bytes",
                                                 ", as NumPy stores types that it does not know; ",
                                                 bytes == 2   ? "if they are bfloat16, say so with --dtype bf16"
                                                 : bytes == 1 ? "say which they are, such as --dtype f8_e4m3"
                                                              : "no type of a tensor has this size"));
  }
  return absl::UnimplementedError(absl::StrCat("the array's type ", QuoteForMessage(descr), " is not that of a tensor",
                                               name == "O" ? " (pickled Python objects are never read)" : "",
                                               "; leave the array out, or save it with a type of numbers"));
}

// Reads the header of the array in `data`, and where its elements are.
absl::StatusOr<StoredTensor> ReadArrayPlace(std::string name, std::shared_ptr<const RandomAccessFile> data,
                                            bool sequential, std::optional<FileDType> raw_dtype) {
  AQT_ASSIGN_OR_RETURN(const NpyHeader header, ReadNpyHeader(*data, raw_dtype));
  StoredTensor tensor;
  tensor.spec = {std::move(name), header.dtype, header.shape};
  AQT_ASSIGN_OR_RETURN(const int64_t bytes, TensorBytes(header.dtype, header.shape));
  if (bytes != data->size() - header.data_begin) {
    return Damaged(absl::StrCat("says ", ToString(header.dtype), header.shape.ToString(), ", which takes ", bytes,
                                " bytes, but ", data->size() - header.data_begin, " follow it"));
  }
  tensor.data = std::move(data);
  tensor.sequential = sequential;
  tensor.begin = header.data_begin;
  if (header.fortran_order) tensor.strides = ColumnMajorStrides(header.shape);
  return tensor;
}

}  // namespace

absl::StatusOr<NpyHeader> ReadNpyHeader(const RandomAccessFile& file, std::optional<FileDType> raw_dtype) {
  constexpr int64_t kVersionBytes = 2;
  const auto magic_bytes = static_cast<int64_t>(kNpyMagic.size());
  if (file.size() < magic_bytes + kVersionBytes + 4) {
    return Damaged(absl::StrCat("is cut off: there are ", file.size(), " bytes"));
  }
  AQT_ASSIGN_OR_RETURN(const std::string begin, ReadText(file, 0, magic_bytes + kVersionBytes + 4));
  if (!absl::StartsWith(begin, kNpyMagic)) return Damaged("does not begin with \"\\x93NUMPY\"");
  const int major = static_cast<uint8_t>(begin[6]), minor = static_cast<uint8_t>(begin[7]);
  if (major < 1 || major > 3 || minor != 0) {
    return absl::UnimplementedError(
        absl::StrCat("the array has format version ", major, ".", minor, "; 1.0, 2.0 and 3.0 are read"));
  }
  const int length_bytes = major == 1 ? 2 : 4;
  const auto length = static_cast<int64_t>(LittleEndian(&begin[8], length_bytes));
  const int64_t text_begin = magic_bytes + kVersionBytes + length_bytes;
  if (length > kMaxHeaderBytes || length > file.size() - text_begin) {
    return Damaged(absl::StrCat("has a length of ", length, "; at most ", kMaxHeaderBytes,
                                " bytes, and not more than the file, are expected"));
  }
  AQT_ASSIGN_OR_RETURN(const std::string text, ReadText(file, text_begin, length));
  HeaderParser parser(text);
  AQT_RETURN_IF_ERROR(parser.Parse());
  NpyHeader header;
  AQT_ASSIGN_OR_RETURN(header.dtype, ParseDescr(parser.descr(), raw_dtype));
  header.shape = Shape(absl::MakeConstSpan(parser.shape()));
  header.fortran_order = parser.fortran_order();
  header.data_begin = text_begin + length;
  if (const absl::Status bytes = TensorBytes(header.dtype, header.shape).status(); !bytes.ok()) {
    return Damaged(bytes.message());
  }
  return header;
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenNpy(std::unique_ptr<RandomAccessFile> file,
                                                      std::optional<FileDType> raw_dtype,
                                                      const ContainerMemory& memory) {
  const std::shared_ptr<const RandomAccessFile> data = std::move(file);
  std::string name(absl::StripSuffix(BaseName(data->path()), kNpySuffix));
  AQT_ASSIGN_OR_RETURN(StoredTensor tensor, ReadArrayPlace(std::move(name), data, /*sequential=*/false, raw_dtype));
  std::vector<StoredTensor> tensors;
  tensors.push_back(std::move(tensor));
  return ContainerSource::Make(*data, std::move(tensors), {}, {}, memory);
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenNpz(std::unique_ptr<RandomAccessFile> file,
                                                      const std::vector<ZipMember>& members,
                                                      std::optional<FileDType> raw_dtype,
                                                      const ContainerMemory& memory) {
  const std::shared_ptr<const RandomAccessFile> archive = std::move(file);
  std::vector<StoredTensor> tensors;
  std::vector<std::string> warnings;
  for (const ZipMember& member : members) {
    absl::string_view name = member.name;
    if (!absl::ConsumeSuffix(&name, kNpySuffix)) {
      warnings.push_back(absl::StrCat(QuoteForMessage(member.name), " in ", QuoteForMessage(archive->path()),
                                      " is left out: it is not an array"));
      continue;
    }
    absl::StatusOr<StoredTensor> tensor =
        ReadArrayPlace(std::string(name), OpenZipMember(archive, member, memory), member.deflated, raw_dtype);
    if (!tensor.ok()) return Annotate(tensor.status(), absl::StrCat("array ", QuoteForMessage(name)));
    tensors.push_back(*std::move(tensor));
  }
  return ContainerSource::Make(*archive, std::move(tensors), {}, std::move(warnings), memory);
}

}  // namespace aqt::io
