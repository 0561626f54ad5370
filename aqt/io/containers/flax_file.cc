#include "aqt/io/containers/flax_file.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/archives/bytes.h"
#include "aqt/io/archives/part_file.h"
#include "aqt/io/containers/container_source.h"
#include "aqt/io/json.h"

namespace aqt::io {
namespace {

// Bounds, far above what any model has.
constexpr size_t kMaxNodes = 1 << 18;
constexpr uint64_t kMaxKeyBytes = 4096;
constexpr size_t kMaxNames = 16 << 20;  // bytes of all names
constexpr int kMaxDepth = 64;
constexpr int64_t kBufferBytes = 16 << 10;

// Extension types of flax.
constexpr int kArrayExtension = 1;
constexpr int kComplexExtension = 2;
constexpr int kScalarExtension = 3;

// The map that flax writes in place of a large array.
constexpr absl::string_view kChunkedKey = "__msgpack_chunked_array__";

struct FlaxType {
  absl::string_view name;
  FileDType dtype;
  int low_bits = 0;
  bool is_signed = false;
};
constexpr FlaxType kTypes[] = {
    {"float32", FileDType::kF32},
    {"bfloat16", FileDType::kBF16},
    {"float16", FileDType::kF16},
    {"float64", FileDType::kF64},
    {"int8", FileDType::kI8},
    {"uint8", FileDType::kU8},
    {"int16", FileDType::kI16},
    {"uint16", FileDType::kU16},
    {"int32", FileDType::kI32},
    {"uint32", FileDType::kU32},
    {"int64", FileDType::kI64},
    {"uint64", FileDType::kU64},
    {"bool", FileDType::kBool},
    {"complex64", FileDType::kC64},
    {"float8_e4m3fn", FileDType::kF8E4M3},
    {"float8_e5m2", FileDType::kF8E5M2},
    {"float8_e4m3fnuz", FileDType::kF8E4M3FNUZ},
    {"float8_e5m2fnuz", FileDType::kF8E5M2FNUZ},
    {"float8_e8m0fnu", FileDType::kF8E8M0},
    {"int4", FileDType::kI8, 4, true},
    {"int2", FileDType::kI8, 2, true},
    {"uint4", FileDType::kU8, 4, false},
    {"uint2", FileDType::kU8, 2, false},
};

struct FlaxArray {
  std::string type;
  std::vector<int64_t> extents;
  std::vector<PartFile::Range> data;
};

// A value of the tree.
struct Node {
  enum Kind : uint8_t { kNil, kMap, kArray, kNumber, kOther };
  Kind kind = kOther;
  int64_t number = 0;  // kNumber
  std::string key;     // in the map above
  std::unique_ptr<FlaxArray> array;
  std::vector<Node> children;  // kMap

  const Node* Find(absl::string_view name) const {
    const auto it = std::find_if(children.begin(), children.end(), [&](const Node& n) { return n.key == name; });
    return it == children.end() ? nullptr : &*it;
  }
};

class Parser {
 public:
  explicit Parser(const RandomAccessFile& file) : file_(file) {}

  absl::StatusOr<Node> Parse() {
    Node root;
    AQT_RETURN_IF_ERROR(Value(root, 0));
    if (at_ != file_.size()) return Damaged(absl::StrCat("follows the tree; ", file_.size() - at_, " bytes are left"));
    if (root.kind != Node::kMap) return Damaged("is not in a map of arrays");
    return root;
  }

 private:
  absl::Status Damaged(absl::string_view cause) const {
    return absl::DataLossError(absl::StrCat("byte ", at_, " ", cause, "; the file is damaged, or not of flax"));
  }

  // Fails unless `n` more bytes are there.
  absl::Status Need(uint64_t n) const {
    if (n <= static_cast<uint64_t>(file_.size() - at_)) return absl::OkStatus();
    return Damaged(absl::StrCat("begins ", n, " bytes, and the file has only ", file_.size() - at_, " more"));
  }

  absl::StatusOr<std::string> Take(uint64_t n) {
    AQT_RETURN_IF_ERROR(Need(n));
    const auto bytes = static_cast<int64_t>(n);
    if (at_ < buffer_at_ || at_ + bytes > buffer_at_ + static_cast<int64_t>(buffer_.size())) {
      AQT_ASSIGN_OR_RETURN(buffer_, ReadText(file_, at_, std::min(file_.size() - at_, std::max(kBufferBytes, bytes))));
      buffer_at_ = at_;
    }
    std::string taken = buffer_.substr(static_cast<size_t>(at_ - buffer_at_), n);
    at_ += bytes;
    return taken;
  }
  absl::Status Skip(uint64_t n) {
    AQT_RETURN_IF_ERROR(Need(n));
    at_ += static_cast<int64_t>(n);
    return absl::OkStatus();
  }
  absl::StatusOr<uint8_t> Byte() {
    AQT_ASSIGN_OR_RETURN(const std::string byte, Take(1));
    return static_cast<uint8_t>(byte[0]);
  }
  // A big-endian number.
  absl::StatusOr<uint64_t> Number(int bytes) {
    AQT_ASSIGN_OR_RETURN(const std::string text, Take(static_cast<uint64_t>(bytes)));
    uint64_t number = 0;
    for (const char c : text) number = number << 8 | static_cast<uint8_t>(c);
    return number;
  }

  // The number of elements or bytes that a first byte announces, in the family whose short form is [low, high] and
  // whose longer forms, with 1, 2 and 4 bytes, begin with `longer`. Nullopt if it is of another family.
  struct Family {
    uint8_t low, high;
    uint8_t longer[3];
  };
  static constexpr Family kMapFamily = {0x80, 0x8f, {0, 0xde, 0xdf}};
  static constexpr Family kArrayFamily = {0x90, 0x9f, {0, 0xdc, 0xdd}};
  static constexpr Family kTextFamily = {0xa0, 0xbf, {0xd9, 0xda, 0xdb}};
  static constexpr Family kBinFamily = {1, 0, {0xc4, 0xc5, 0xc6}};
  absl::StatusOr<std::optional<uint64_t>> CountOf(uint8_t first, const Family& family) {
    if (first >= family.low && first <= family.high) return first - family.low;
    for (int i = 0; i < 3; ++i) {
      if (family.longer[i] == 0 || first != family.longer[i]) continue;
      AQT_ASSIGN_OR_RETURN(const uint64_t count, Number(1 << i));
      return count;
    }
    return std::nullopt;
  }

  // An integer of any form, if `first` begins one.
  absl::StatusOr<std::optional<int64_t>> IntegerOf(uint8_t first) {
    if (first < 0x80) return first;
    if (first >= 0xe0) return static_cast<int8_t>(first);
    if (first < 0xcc || first > 0xd3) return std::nullopt;
    const int log_bytes = (first - 0xcc) % 4;
    AQT_ASSIGN_OR_RETURN(const uint64_t number, Number(1 << log_bytes));
    if (first < 0xd0 || log_bytes == 3) return static_cast<int64_t>(number);
    const int unused = 64 - (8 << log_bytes);
    return static_cast<int64_t>(number << unused) >> unused;
  }

  absl::Status Value(Node& node, int depth) {
    if (depth > kMaxDepth) return Damaged(absl::StrCat("is more than ", kMaxDepth, " maps deep"));
    AQT_ASSIGN_OR_RETURN(const uint8_t first, Byte());
    AQT_ASSIGN_OR_RETURN(const std::optional<uint64_t> members, CountOf(first, kMapFamily));
    if (members.has_value()) return Children(node, *members, /*keys=*/true, depth);
    AQT_ASSIGN_OR_RETURN(const std::optional<uint64_t> items, CountOf(first, kArrayFamily));
    if (items.has_value()) return Children(node, *items, /*keys=*/false, depth);
    for (const Family* family : {&kTextFamily, &kBinFamily}) {
      AQT_ASSIGN_OR_RETURN(const std::optional<uint64_t> bytes, CountOf(first, *family));
      if (bytes.has_value()) return Skip(*bytes);
    }
    AQT_ASSIGN_OR_RETURN(const std::optional<int64_t> number, IntegerOf(first));
    if (number.has_value()) {
      node.kind = Node::kNumber;
      node.number = *number;
      return absl::OkStatus();
    }
    switch (first) {
      case 0xc0: node.kind = Node::kNil; return absl::OkStatus();
      case 0xc2:
      case 0xc3: return absl::OkStatus();  // false, true
      case 0xca: return Skip(4);           // floats
      case 0xcb: return Skip(8);
      default: return Extension(first, node);
    }
  }

  absl::Status Children(Node& node, uint64_t count, bool keys, int depth) {
    node.kind = Node::kMap;
    if (count > kMaxNodes || (nodes_ += count) > kMaxNodes) {
      return absl::UnimplementedError(absl::StrCat("byte ", at_, ": the tree has more than ", kMaxNodes,
                                                   " values, which is the most that is read"));
    }
    AQT_RETURN_IF_ERROR(Need(count));  // at least a byte each
    for (uint64_t i = 0; i < count; ++i) {
      Node child;
      if (keys) {
        AQT_ASSIGN_OR_RETURN(child.key, Key());
      } else {
        child.key = absl::StrCat(i);
      }
      AQT_RETURN_IF_ERROR(Value(child, depth + 1));
      node.children.push_back(std::move(child));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Text() {
    AQT_ASSIGN_OR_RETURN(const uint8_t first, Byte());
    for (const Family* family : {&kTextFamily, &kBinFamily}) {
      AQT_ASSIGN_OR_RETURN(const std::optional<uint64_t> bytes, CountOf(first, *family));
      if (!bytes.has_value()) continue;
      if (*bytes > kMaxKeyBytes) return Damaged(absl::StrCat("begins a name of ", *bytes, " bytes"));
      return Take(*bytes);
    }
    return Damaged(absl::StrFormat("follows 0x%02x, where a text is expected", first));
  }

  absl::StatusOr<std::string> Key() {
    AQT_ASSIGN_OR_RETURN(const uint8_t first, Byte());
    AQT_ASSIGN_OR_RETURN(const std::optional<int64_t> number, IntegerOf(first));
    if (number.has_value()) return absl::StrCat(*number);
    --at_;
    return Text();
  }

  absl::Status Extension(uint8_t first, Node& node) {
    uint64_t bytes = 0;
    if (first >= 0xd4 && first <= 0xd8) {
      bytes = uint64_t{1} << (first - 0xd4);
    } else if (first >= 0xc7 && first <= 0xc9) {
      AQT_ASSIGN_OR_RETURN(bytes, Number(1 << (first - 0xc7)));
    } else {
      return Damaged(absl::StrFormat("follows 0x%02x, which begins no value", first));
    }
    AQT_ASSIGN_OR_RETURN(const uint8_t type, Byte());
    AQT_RETURN_IF_ERROR(Need(bytes));
    if (type == kComplexExtension) return Skip(bytes);
    if (type != kArrayExtension && type != kScalarExtension) {
      return Damaged(absl::StrCat("begins an extension of type ", int{type}, "; flax has 1, 2 and 3"));
    }
    const int64_t end = at_ + static_cast<int64_t>(bytes);
    AQT_RETURN_IF_ERROR(Array(node));
    return at_ == end ? absl::OkStatus() : Damaged("is not the end of the array that ends here");
  }

  // (shape, type, bytes)
  absl::Status Array(Node& node) {
    node.kind = Node::kArray;
    node.array = std::make_unique<FlaxArray>();
    for (const uint64_t expected : {uint64_t{3}, uint64_t{0}}) {
      AQT_ASSIGN_OR_RETURN(const uint8_t first, Byte());
      AQT_ASSIGN_OR_RETURN(const std::optional<uint64_t> count, CountOf(first, kArrayFamily));
      if (!count.has_value() || (expected == 3 && *count != 3) || *count > static_cast<uint64_t>(kMaxTensorRank)) {
        return Damaged(expected == 3 ? "does not begin an array of shape, type and bytes" : "does not begin a shape");
      }
      if (expected == 3) continue;
      for (uint64_t i = 0; i < *count; ++i) {
        AQT_ASSIGN_OR_RETURN(const uint8_t byte, Byte());
        AQT_ASSIGN_OR_RETURN(const std::optional<int64_t> extent, IntegerOf(byte));
        if (!extent.has_value() || *extent < 0) return Damaged("is not an extent of a shape");
        node.array->extents.push_back(*extent);
      }
    }
    AQT_ASSIGN_OR_RETURN(node.array->type, Text());
    AQT_ASSIGN_OR_RETURN(const uint8_t first, Byte());
    for (const Family* family : {&kBinFamily, &kTextFamily}) {
      AQT_ASSIGN_OR_RETURN(const std::optional<uint64_t> bytes, CountOf(first, *family));
      if (!bytes.has_value()) continue;
      node.array->data.push_back({at_, static_cast<int64_t>(*bytes)});
      return Skip(*bytes);
    }
    return Damaged("does not begin the bytes of an array");
  }

  const RandomAccessFile& file_;
  int64_t at_ = 0;
  std::string buffer_;
  int64_t buffer_at_ = 0;
  uint64_t nodes_ = 1;
};

// The children in the order of their keys "0", "1", ..; empty if these are not all keys.
std::vector<const Node*> InOrder(const Node& map) {
  std::vector<const Node*> ordered(map.children.size(), nullptr);
  for (const Node& child : map.children) {
    size_t i = 0;
    if (!absl::SimpleAtoi(child.key, &i) || i >= ordered.size() || ordered[i] != nullptr) return {};
    ordered[i] = &child;
  }
  return ordered;
}

class TreeReader {
 public:
  explicit TreeReader(std::shared_ptr<const RandomAccessFile> file) : file_(std::move(file)) {}

  absl::Status Visit(const Node& node, const std::string& name) {
    if (node.kind == Node::kArray) return Add(*node.array, name);
    if (node.kind == Node::kNil) return absl::OkStatus();
    if (node.kind != Node::kMap) {
      if (num_left_out_++ == 0) left_out_ = name;
      return absl::OkStatus();
    }
    if (node.Find(kChunkedKey) != nullptr) {
      AQT_ASSIGN_OR_RETURN(const FlaxArray array, Join(node, name));
      return Add(array, name);
    }
    for (const Node& child : node.children) {
      names_ += name.size() + child.key.size() + 1;
      if (names_ > kMaxNames) {
        return absl::UnimplementedError(absl::StrCat("the names of the tree exceed ", kMaxNames, " bytes"));
      }
      AQT_RETURN_IF_ERROR(Visit(child, name.empty() ? child.key : absl::StrCat(name, ".", child.key)));
    }
    return absl::OkStatus();
  }

  std::vector<StoredTensor> tensors;

  std::vector<std::string> Warnings() const {
    if (num_left_out_ == 0) return {};
    return {absl::StrCat(QuoteForMessage(left_out_), num_left_out_ > 1 ? " and others" : "", " in ",
                         QuoteForMessage(file_->path()), num_left_out_ > 1 ? " are" : " is", " left out: ",
                         num_left_out_, num_left_out_ > 1 ? " values are not arrays" : " value is not an array")};
  }

 private:
  absl::StatusOr<FlaxArray> Join(const Node& node, const std::string& name) const {
    const auto fail = [&](absl::string_view cause) {
      return absl::DataLossError(absl::StrCat("array ", QuoteForMessage(name), ", in chunks, ", cause));
    };
    const Node* shape = node.Find("shape");
    const Node* chunks = node.Find("chunks");
    if (shape == nullptr || chunks == nullptr) return fail("lacks shape or chunks");
    FlaxArray array;
    const std::vector<const Node*> extents = InOrder(*shape), parts = InOrder(*chunks);
    if (extents.empty() || extents.size() > static_cast<size_t>(kMaxTensorRank)) return fail("has no shape");
    if (parts.empty()) return fail("has no chunks");
    for (const Node* extent : extents) {
      if (extent->kind != Node::kNumber || extent->number < 0) return fail("has no shape");
      array.extents.push_back(extent->number);
    }
    for (const Node* part : parts) {
      if (part->kind != Node::kArray) return fail("has a chunk that is not an array");
      if (array.data.empty()) array.type = part->array->type;
      if (part->array->type != array.type) return fail("has chunks of several types");
      array.data.push_back(part->array->data[0]);
    }
    return array;
  }

  absl::Status Add(const FlaxArray& array, const std::string& name) {
    const auto type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const FlaxType& known) { return known.name == array.type; });
    const std::string what = absl::StrCat("array ", QuoteForMessage(name));
    if (type == std::end(kTypes)) {
      return absl::UnimplementedError(absl::StrCat(what, " has the type ", QuoteForMessage(array.type),
                                                   ", which tensors cannot have; leave it out of the tree"));
    }
    StoredTensor tensor;
    tensor.spec = {name, type->dtype, Shape(absl::MakeConstSpan(array.extents))};
    tensor.low_bits = type->low_bits;
    tensor.is_signed = type->is_signed;
    const absl::StatusOr<int64_t> bytes = TensorBytes(type->dtype, tensor.spec.shape);
    if (!bytes.ok()) return absl::DataLossError(absl::StrCat(what, ": ", bytes.status().message()));
    tensor.data = std::make_shared<PartFile>(file_, array.data);
    if (tensor.data->size() != *bytes) {
      return absl::DataLossError(absl::StrCat(what, " has ", tensor.data->size(), " bytes, but ", array.type,
                                              tensor.spec.shape.ToString(), " takes ", *bytes));
    }
    tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  const std::shared_ptr<const RandomAccessFile> file_;
  int64_t num_left_out_ = 0;
  std::string left_out_;  // the name of the first value that is not an array
  size_t names_ = 0;      // bytes
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorSource>> OpenFlaxFile(std::unique_ptr<RandomAccessFile> file,
                                                           const ContainerMemory& memory) {
  const std::shared_ptr<const RandomAccessFile> data = std::move(file);
  AQT_ASSIGN_OR_RETURN(const Node root, Parser(*data).Parse());
  TreeReader reader(data);
  AQT_RETURN_IF_ERROR(reader.Visit(root, ""));
  return ContainerSource::Make(*data, std::move(reader.tensors), {}, reader.Warnings(), memory);
}

}  // namespace aqt::io
