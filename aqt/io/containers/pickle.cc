#include "aqt/io/containers/pickle.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/archives/bytes.h"
#include "aqt/io/json.h"

namespace aqt::io {
namespace {

// Bounds, far above what describes the tensors of any model.
constexpr size_t kMaxValues = 1 << 19;
constexpr size_t kMaxPushes = 1 << 22;
constexpr size_t kMaxVisits = 1 << 21;
constexpr size_t kMaxTensors = 1 << 17;
constexpr size_t kMaxNames = 16 << 20;  // bytes of all names
constexpr int kMaxDepth = 64;

enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kEmptyList = ']',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kEmptyTuple = ')',
  kProto = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

// The names of all opcodes, for messages.
struct OpcodeName {
  uint8_t opcode;
  absl::string_view name;
};
constexpr OpcodeName kOpcodeNames[] = {
    {'(', "MARK"},
    {'.', "STOP"},
    {'0', "POP"},
    {'1', "POP_MARK"},
    {'2', "DUP"},
    {'F', "FLOAT"},
    {'I', "INT"},
    {'J', "BININT"},
    {'K', "BININT1"},
    {'L', "LONG"},
    {'M', "BININT2"},
    {'N', "NONE"},
    {'P', "PERSID"},
    {'Q', "BINPERSID"},
    {'R', "REDUCE"},
    {'S', "STRING"},
    {'T', "BINSTRING"},
    {'U', "SHORT_BINSTRING"},
    {'V', "UNICODE"},
    {'X', "BINUNICODE"},
    {'a', "APPEND"},
    {'b', "BUILD"},
    {'c', "GLOBAL"},
    {'d', "DICT"},
    {'}', "EMPTY_DICT"},
    {'e', "APPENDS"},
    {'g', "GET"},
    {'h', "BINGET"},
    {'i', "INST"},
    {'j', "LONG_BINGET"},
    {'l', "LIST"},
    {']', "EMPTY_LIST"},
    {'o', "OBJ"},
    {'p', "PUT"},
    {'q', "BINPUT"},
    {'r', "LONG_BINPUT"},
    {'s', "SETITEM"},
    {'t', "TUPLE"},
    {')', "EMPTY_TUPLE"},
    {'u', "SETITEMS"},
    {'G', "BINFLOAT"},
    {0x80, "PROTO"},
    {0x81, "NEWOBJ"},
    {0x82, "EXT1"},
    {0x83, "EXT2"},
    {0x84, "EXT4"},
    {0x85, "TUPLE1"},
    {0x86, "TUPLE2"},
    {0x87, "TUPLE3"},
    {0x88, "NEWTRUE"},
    {0x89, "NEWFALSE"},
    {0x8a, "LONG1"},
    {0x8b, "LONG4"},
    {'B', "BINBYTES"},
    {'C', "SHORT_BINBYTES"},
    {0x8c, "SHORT_BINUNICODE"},
    {0x8d, "BINUNICODE8"},
    {0x8e, "BINBYTES8"},
    {0x8f, "EMPTY_SET"},
    {0x90, "ADDITEMS"},
    {0x91, "FROZENSET"},
    {0x92, "NEWOBJ_EX"},
    {0x93, "STACK_GLOBAL"},
    {0x94, "MEMOIZE"},
    {0x95, "FRAME"},
    {0x96, "BYTEARRAY8"},
    {0x97, "NEXT_BUFFER"},
    {0x98, "READONLY_BUFFER"},
};

std::string NameOf(uint8_t opcode) {
  for (const OpcodeName& known : kOpcodeNames) {
    if (known.opcode == opcode) return std::string(known.name);
  }
  return absl::StrFormat("0x%02x", opcode);
}

// What a name means here.
enum class Role : uint8_t {
  kOrderedDict,
  kRebuildTensor,
  kRebuildTypedTensor,
  kRebuildParameter,
  kSize,
  kStorage,
  kDType
};
struct KnownName {
  absl::string_view module;
  absl::string_view name;
  Role role;
  std::optional<FileDType> dtype = std::nullopt;  // of kStorage and kDType
};
constexpr KnownName kKnownNames[] = {
    {"collections", "OrderedDict", Role::kOrderedDict},
    {"torch._utils", "_rebuild_tensor_v2", Role::kRebuildTensor},
    {"torch._utils", "_rebuild_tensor_v3", Role::kRebuildTypedTensor},
    {"torch._utils", "_rebuild_parameter", Role::kRebuildParameter},
    {"torch", "Size", Role::kSize},
    {"torch.storage", "UntypedStorage", Role::kStorage},
    {"torch", "FloatStorage", Role::kStorage, FileDType::kF32},
    {"torch", "HalfStorage", Role::kStorage, FileDType::kF16},
    {"torch", "BFloat16Storage", Role::kStorage, FileDType::kBF16},
    {"torch", "DoubleStorage", Role::kStorage, FileDType::kF64},
    {"torch", "LongStorage", Role::kStorage, FileDType::kI64},
    {"torch", "IntStorage", Role::kStorage, FileDType::kI32},
    {"torch", "ShortStorage", Role::kStorage, FileDType::kI16},
    {"torch", "CharStorage", Role::kStorage, FileDType::kI8},
    {"torch", "ByteStorage", Role::kStorage, FileDType::kU8},
    {"torch", "BoolStorage", Role::kStorage, FileDType::kBool},
    {"torch", "ComplexFloatStorage", Role::kStorage, FileDType::kC64},
    {"torch", "float32", Role::kDType, FileDType::kF32},
    {"torch", "float16", Role::kDType, FileDType::kF16},
    {"torch", "bfloat16", Role::kDType, FileDType::kBF16},
    {"torch", "float64", Role::kDType, FileDType::kF64},
    {"torch", "int64", Role::kDType, FileDType::kI64},
    {"torch", "int32", Role::kDType, FileDType::kI32},
    {"torch", "int16", Role::kDType, FileDType::kI16},
    {"torch", "int8", Role::kDType, FileDType::kI8},
    {"torch", "uint8", Role::kDType, FileDType::kU8},
    {"torch", "uint16", Role::kDType, FileDType::kU16},
    {"torch", "uint32", Role::kDType, FileDType::kU32},
    {"torch", "uint64", Role::kDType, FileDType::kU64},
    {"torch", "bool", Role::kDType, FileDType::kBool},
    {"torch", "float8_e4m3fn", Role::kDType, FileDType::kF8E4M3},
    {"torch", "float8_e5m2", Role::kDType, FileDType::kF8E5M2},
    {"torch", "float8_e4m3fnuz", Role::kDType, FileDType::kF8E4M3FNUZ},
    {"torch", "float8_e5m2fnuz", Role::kDType, FileDType::kF8E5M2FNUZ},
    {"torch", "float8_e8m0fnu", Role::kDType, FileDType::kF8E8M0},
};

constexpr absl::string_view kRemedy =
    "; nothing was executed. Where you trust the file, load it and save only its tensors as safetensors";

using Ref = uint32_t;  // a value, by its index

struct Value {
  enum Kind : uint8_t { kNone, kBool, kInt, kFloat, kText, kTuple, kList, kDict, kName, kStorage, kTensor };
  Kind kind = kNone;
  int64_t number = 0;           // kBool, kInt; the index of a kName, kStorage or kTensor
  absl::string_view text = {};  // kText
  std::vector<Ref> items = {};  // kTuple, kList; keys and values of a kDict
};

// Runs a pickle on values that are only data.
class Unpickler {
 public:
  explicit Unpickler(absl::string_view bytes)
      : bytes_(bytes.substr(0, std::min<size_t>(bytes.size(), kMaxPickleBytes))) {}

  // The index of the result.
  absl::StatusOr<Ref> Run() {
    while (true) {
      op_at_ = at_;
      AQT_ASSIGN_OR_RETURN(const absl::string_view op, Take(1));
      op_ = static_cast<uint8_t>(op[0]);
      if (op_ == kStop) break;
      AQT_RETURN_IF_ERROR(Step());
    }
    return Pop();
  }

  size_t size() const { return at_; }
  const Value& at(Ref ref) const { return values_[ref]; }
  const KnownName& name_of(const Value& value) const { return kKnownNames[value.number]; }
  std::vector<PickledStorage>& storages() { return storages_; }
  const std::vector<PickledTensor>& tensors() const { return tensors_; }

 private:
  std::string Where() const { return absl::StrCat("opcode ", NameOf(op_), " at byte ", op_at_, " of the pickle"); }
  absl::Status Damaged(absl::string_view cause) const {
    return absl::DataLossError(absl::StrCat(Where(), " ", cause, "; the file is damaged"));
  }
  absl::Status Refuse(absl::string_view what) const {
    return absl::UnimplementedError(absl::StrCat(Where(), " ", what, kRemedy));
  }
  absl::Status TooLarge() const {
    return absl::UnimplementedError(absl::StrCat(Where(), " exceeds what is read: ", kMaxValues, " values"));
  }

  absl::StatusOr<absl::string_view> Take(uint64_t n) {
    if (n > bytes_.size() - at_) {
      if (bytes_.size() == static_cast<size_t>(kMaxPickleBytes)) {
        return absl::UnimplementedError(absl::StrCat("the pickle has more than ", kMaxPickleBytes, " bytes"));
      }
      return Damaged("is cut off");
    }
    const absl::string_view taken = bytes_.substr(at_, n);
    at_ += n;
    return taken;
  }
  absl::StatusOr<uint64_t> Number(int n) {
    AQT_ASSIGN_OR_RETURN(const absl::string_view bytes, Take(static_cast<uint64_t>(n)));
    return LittleEndian(bytes.data(), n);
  }
  absl::StatusOr<absl::string_view> Line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == absl::string_view::npos) return Damaged("is cut off");
    const absl::string_view line = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }

  absl::Status PushRef(Ref ref) {
    if (++pushes_ > kMaxPushes) return TooLarge();
    stack_.push_back(ref);
    return absl::OkStatus();
  }
  absl::Status Push(Value value) {
    if (values_.size() == kMaxValues) return TooLarge();
    values_.push_back(std::move(value));
    return PushRef(static_cast<Ref>(values_.size() - 1));
  }
  absl::Status PushInt(int64_t number) { return Push({.kind = Value::kInt, .number = number}); }
  absl::Status PushText(uint64_t bytes) {
    AQT_ASSIGN_OR_RETURN(const absl::string_view text, Take(bytes));
    return Push({.kind = Value::kText, .text = text});
  }

  size_t Floor() const { return marks_.empty() ? 0 : marks_.back(); }
  absl::StatusOr<Ref> Pop() {
    if (stack_.size() <= Floor()) return Damaged("needs a value, and there is none");
    const Ref top = stack_.back();
    stack_.pop_back();
    return top;
  }
  // The values since the latest mark.
  absl::StatusOr<std::vector<Ref>> PopToMark() {
    if (marks_.empty()) return Damaged("needs a mark, and there is none");
    std::vector<Ref> items(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  absl::StatusOr<std::vector<Ref>> PopItems(int n) {
    std::vector<Ref> items(static_cast<size_t>(n));
    for (int i = n; i > 0; --i) {
      AQT_ASSIGN_OR_RETURN(items[static_cast<size_t>(i) - 1], Pop());
    }
    return items;
  }
  absl::Status PushTuple(absl::StatusOr<std::vector<Ref>> items) {
    AQT_RETURN_IF_ERROR(items.status());
    return Push({.kind = Value::kTuple, .items = *std::move(items)});
  }

  absl::Status Step() {
    switch (op_) {
      case kProto: return Proto();
      case kFrame: return Number(8).status();
      case kMark:
        if (++pushes_ > kMaxPushes) return TooLarge();
        marks_.push_back(stack_.size());
        return absl::OkStatus();
      case kNone: return Push({});
      case kNewTrue: return Push({.kind = Value::kBool, .number = 1});
      case kNewFalse: return Push({.kind = Value::kBool});
      case kBinInt1: return PushNumber(1);
      case kBinInt2: return PushNumber(2);
      case kBinInt: return PushNumber(4);
      case kLong1: return Long1();
      case kBinFloat: AQT_RETURN_IF_ERROR(Take(8).status()); return Push({.kind = Value::kFloat});
      case kShortBinString:
      case kShortBinUnicode: return Text(1);
      case kBinUnicode: return Text(4);
      case kEmptyTuple: return Push({.kind = Value::kTuple});
      case kEmptyList: return Push({.kind = Value::kList});
      case kEmptyDict: return Push({.kind = Value::kDict});
      case kTuple1: return PushTuple(PopItems(1));
      case kTuple2: return PushTuple(PopItems(2));
      case kTuple3: return PushTuple(PopItems(3));
      case kTuple: return PushTuple(PopToMark());
      case kAppend: return Extend(Value::kList, PopItems(1));
      case kAppends: return Extend(Value::kList, PopToMark());
      case kSetItem: return Extend(Value::kDict, PopItems(2));
      case kSetItems: return Extend(Value::kDict, PopToMark());
      case kBinPut: return Put(Number(1));
      case kLongBinPut: return Put(Number(4));
      case kMemoize: return Put(memo_.size());
      case kBinGet: return Get(Number(1));
      case kLongBinGet: return Get(Number(4));
      case kGlobal: return Global();
      case kStackGlobal: return StackGlobal();
      case kBinPersId: return PersistentId();
      case kReduce: return Reduce();
      case kBuild: return Build();
      default: return Refuse("is not a part of describing tensors");
    }
  }

  absl::Status Proto() {
    AQT_ASSIGN_OR_RETURN(const uint64_t version, Number(1));
    if (version < 2 || version > 5) return Refuse(absl::StrCat("says version ", version, ", not 2 to 5"));
    return absl::OkStatus();
  }

  absl::Status PushNumber(int n) {
    AQT_ASSIGN_OR_RETURN(const uint64_t number, Number(n));
    return PushInt(n == 4 ? static_cast<int32_t>(number) : static_cast<int64_t>(number));
  }

  absl::Status Long1() {
    AQT_ASSIGN_OR_RETURN(const uint64_t n, Number(1));
    if (n > 8) return Refuse(absl::StrCat("is a number of ", n, " bytes; up to 8 are read"));
    AQT_ASSIGN_OR_RETURN(uint64_t number, Number(static_cast<int>(n)));
    if (n > 0 && n < 8 && (number >> (8 * n - 1)) != 0) number |= ~uint64_t{0} << (8 * n);  // negative
    return PushInt(static_cast<int64_t>(number));
  }

  absl::Status Text(int length_bytes) {
    AQT_ASSIGN_OR_RETURN(const uint64_t length, Number(length_bytes));
    return PushText(length);
  }

  absl::Status Extend(Value::Kind kind, absl::StatusOr<std::vector<Ref>> items) {
    AQT_RETURN_IF_ERROR(items.status());
    if (stack_.size() <= Floor()) return Damaged("needs a list or dict, and there is none");
    Value& target = values_[stack_.back()];
    if (target.kind != kind) return Damaged(kind == Value::kList ? "needs a list" : "needs a dict");
    if (kind == Value::kDict && items->size() % 2 != 0) return Damaged("has a key without value");
    target.items.insert(target.items.end(), items->begin(), items->end());
    return absl::OkStatus();
  }

  absl::Status Put(absl::StatusOr<uint64_t> index) {
    AQT_RETURN_IF_ERROR(index.status());
    if (stack_.size() <= Floor()) return Damaged("needs a value, and there is none");
    if (memo_.size() == kMaxValues) return TooLarge();
    memo_[*index] = stack_.back();
    return absl::OkStatus();
  }

  absl::Status Get(absl::StatusOr<uint64_t> index) {
    AQT_RETURN_IF_ERROR(index.status());
    const auto found = memo_.find(*index);
    if (found == memo_.end()) return Damaged(absl::StrCat("asks for value ", *index, ", which was not kept"));
    return PushRef(found->second);
  }

  absl::Status PushName(absl::string_view module, absl::string_view name) {
    for (const KnownName& known : kKnownNames) {
      if (known.module != module || known.name != name) continue;
      return Push({.kind = Value::kName, .number = &known - kKnownNames});
    }
    return Refuse(absl::StrCat("asks for ", QuoteForMessage(absl::StrCat(module, ".", name)),
                               ", which is not a part of describing tensors"));
  }

  absl::Status Global() {
    AQT_ASSIGN_OR_RETURN(const absl::string_view module, Line());
    AQT_ASSIGN_OR_RETURN(const absl::string_view name, Line());
    return PushName(module, name);
  }

  absl::Status StackGlobal() {
    AQT_ASSIGN_OR_RETURN(const std::vector<Ref> parts, PopItems(2));
    if (at(parts[0]).kind != Value::kText || at(parts[1]).kind != Value::kText) return Damaged("needs two texts");
    return PushName(at(parts[0]).text, at(parts[1]).text);
  }

  bool Is(Ref ref, Value::Kind kind) const { return values_[ref].kind == kind; }
  bool IsRole(Ref ref, Role role) const { return Is(ref, Value::kName) && name_of(values_[ref]).role == role; }

  // ('storage', class, key, device, number of elements)
  absl::Status PersistentId() {
    AQT_ASSIGN_OR_RETURN(const Ref id, Pop());
    const std::vector<Ref>& items = at(id).items;
    const bool has_view = items.size() == 6 && Is(items[5], Value::kNone);  // in the older format
    if (!Is(id, Value::kTuple) || (items.size() != 5 && !has_view) || !Is(items[0], Value::kText) ||
        at(items[0]).text != "storage" || !IsRole(items[1], Role::kStorage) || !Is(items[2], Value::kText) ||
        !Is(items[4], Value::kInt)) {
      return Refuse("does not describe a storage");
    }
    PickledStorage storage;
    storage.key = std::string(at(items[2]).text);
    storage.dtype = name_of(at(items[1])).dtype;
    storage.elements = at(items[4]).number;
    if (storage.elements < 0 || storage.elements > int64_t{1} << 56) return Damaged("has a wrong number of elements");
    storages_.push_back(std::move(storage));
    return Push({.kind = Value::kStorage, .number = static_cast<int64_t>(storages_.size()) - 1});
  }

  absl::Status Reduce() {
    AQT_ASSIGN_OR_RETURN(const std::vector<Ref> call, PopItems(2));
    if (!Is(call[0], Value::kName) || !Is(call[1], Value::kTuple)) return Damaged("does not call a name");
    const KnownName& known = name_of(at(call[0]));
    const std::vector<Ref>& arguments = at(call[1]).items;
    switch (known.role) {
      case Role::kOrderedDict:
        if (!arguments.empty()) return Refuse("makes an OrderedDict with arguments");
        return Push({.kind = Value::kDict});
      case Role::kSize:
        if (arguments.size() != 1 || !Is(arguments[0], Value::kTuple)) return Damaged("is not a torch.Size");
        return PushRef(arguments[0]);
      case Role::kRebuildParameter:
        if (arguments.size() != 3 || !Is(arguments[0], Value::kTensor)) return Damaged("is not a parameter");
        return PushRef(arguments[0]);
      case Role::kRebuildTensor: return Tensor(arguments, /*typed=*/false);
      case Role::kRebuildTypedTensor: return Tensor(arguments, /*typed=*/true);
      default: return Refuse(absl::StrCat("calls ", known.module, ".", known.name));
    }
  }

  absl::StatusOr<std::vector<int64_t>> Numbers(Ref tuple) const {
    if (!Is(tuple, Value::kTuple)) return Damaged("needs a tuple of numbers");
    if (at(tuple).items.size() > static_cast<size_t>(kMaxTensorRank)) {
      return Damaged(absl::StrCat("describes a tensor of more than ", kMaxTensorRank, " dimensions"));
    }
    std::vector<int64_t> numbers;
    for (const Ref item : at(tuple).items) {
      if (!Is(item, Value::kInt)) return Damaged("needs a tuple of numbers");
      numbers.push_back(at(item).number);
    }
    return numbers;
  }

  // (storage, offset, size, strides, requires_grad, hooks[, dtype][, metadata])
  absl::Status Tensor(const std::vector<Ref>& arguments, bool typed) {
    const size_t needed = typed ? 7 : 6;
    if (arguments.size() < needed || arguments.size() > needed + 1 || !Is(arguments[0], Value::kStorage) ||
        !Is(arguments[1], Value::kInt) || (typed && !IsRole(arguments[6], Role::kDType))) {
      return Damaged("does not describe a tensor");
    }
    if (arguments.size() > needed && !Is(arguments[needed], Value::kNone) &&
        !(Is(arguments[needed], Value::kDict) && at(arguments[needed]).items.empty())) {
      return Refuse(
          "describes a tensor with flags, such as a lazy negation or conjugation (call .resolve_neg() or "
          ".resolve_conj() before saving)");
    }
    PickledTensor tensor;
    tensor.storage = static_cast<int>(at(arguments[0]).number);
    const std::optional<FileDType> dtype =
        typed ? name_of(at(arguments[6])).dtype : storages_[static_cast<size_t>(tensor.storage)].dtype;
    if (!dtype.has_value()) return Damaged("describes a tensor without a type");
    tensor.dtype = *dtype;
    tensor.offset = at(arguments[1]).number;
    AQT_ASSIGN_OR_RETURN(const std::vector<int64_t> extents, Numbers(arguments[2]));
    AQT_ASSIGN_OR_RETURN(tensor.strides, Numbers(arguments[3]));
    if (extents.size() != tensor.strides.size() || tensor.offset < 0 || tensor.offset > int64_t{1} << 56) {
      return Damaged("describes a tensor with a wrong shape, strides or offset");
    }
    tensor.shape = Shape(absl::MakeConstSpan(extents));
    tensors_.push_back(std::move(tensor));
    return Push({.kind = Value::kTensor, .number = static_cast<int64_t>(tensors_.size()) - 1});
  }

  // Sets attributes of an OrderedDict, such as the _metadata of a state dict, which nothing here depends on.
  absl::Status Build() {
    AQT_ASSIGN_OR_RETURN(const Ref state, Pop());
    if (stack_.size() <= Floor()) return Damaged("needs a value, and there is none");
    if (!Is(stack_.back(), Value::kDict) || !Is(state, Value::kDict)) return Refuse("sets the state of an object");
    return absl::OkStatus();
  }

  const absl::string_view bytes_;
  size_t at_ = 0;
  size_t op_at_ = 0;  // of the current opcode
  uint8_t op_ = 0;
  size_t pushes_ = 0;
  std::vector<Value> values_;
  std::vector<Ref> stack_;
  std::vector<size_t> marks_;  // sizes of stack_
  std::unordered_map<uint64_t, Ref> memo_;
  std::vector<PickledStorage> storages_;
  std::vector<PickledTensor> tensors_;
};

// Names the tensors by the keys that lead to them.
class Namer {
 public:
  Namer(const Unpickler& unpickler, PickledTensors& result) : unpickler_(unpickler), result_(result) {}

  absl::Status Visit(Ref ref, const std::string& name, int depth) {
    if (++visits_ > kMaxVisits || depth > kMaxDepth || result_.tensors.size() > kMaxTensors) {
      return absl::UnimplementedError(absl::StrCat(QuoteForMessage(name), " in the pickle: more than ", kMaxDepth,
                                                   " dicts in each other, or ", kMaxTensors, " tensors, or ",
                                                   kMaxVisits, " values in all"));
    }
    const Value& value = unpickler_.at(ref);
    switch (value.kind) {
      case Value::kTensor: {
        PickledTensor tensor = unpickler_.tensors()[static_cast<size_t>(value.number)];
        tensor.name = name;
        result_.tensors.push_back(std::move(tensor));
        return absl::OkStatus();
      }
      case Value::kTuple:
      case Value::kList:
        for (size_t i = 0; i < value.items.size(); ++i) {
          AQT_RETURN_IF_ERROR(Child(name, absl::StrCat(i), value.items[i], depth));
        }
        return absl::OkStatus();
      case Value::kDict: return Members(value, name, depth);
      case Value::kNone: return absl::OkStatus();
      default:
        if (result_.num_left_out++ == 0) result_.left_out = name;
        return absl::OkStatus();
    }
  }

 private:
  absl::Status Members(const Value& dict, const std::string& name, int depth) {
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      const Value& key = unpickler_.at(dict.items[i]);
      if (key.kind != Value::kText && key.kind != Value::kInt) {
        return absl::UnimplementedError(
            absl::StrCat("dict ", QuoteForMessage(name), " in the pickle has a key that is neither text nor number"));
      }
      const std::string part = key.kind == Value::kText ? std::string(key.text) : absl::StrCat(key.number);
      AQT_RETURN_IF_ERROR(Child(name, part, dict.items[i + 1], depth));
    }
    return absl::OkStatus();
  }

  absl::Status Child(const std::string& name, absl::string_view part, Ref ref, int depth) {
    names_ += name.size() + part.size() + 1;
    if (names_ > kMaxNames) {
      return absl::UnimplementedError(absl::StrCat("the names in the pickle exceed ", kMaxNames, " bytes"));
    }
    return Visit(ref, depth == 0 ? std::string(part) : absl::StrCat(name, ".", part), depth + 1);
  }

  const Unpickler& unpickler_;
  PickledTensors& result_;
  size_t visits_ = 0;
  size_t names_ = 0;  // bytes
};

}  // namespace

absl::StatusOr<PickledTensors> ReadPickledTensors(absl::string_view bytes) {
  Unpickler unpickler(bytes);
  AQT_ASSIGN_OR_RETURN(const Ref root, unpickler.Run());
  PickledTensors result;
  if (unpickler.at(root).kind != Value::kDict) {
    return absl::UnimplementedError(
        "the pickle does not describe a dict of tensors; save the model's state_dict(), as safetensors or by "
        "torch.save");
  }
  AQT_RETURN_IF_ERROR(Namer(unpickler, result).Visit(root, "", 0));
  result.storages = std::move(unpickler.storages());
  result.bytes = static_cast<int64_t>(unpickler.size());
  return result;
}

absl::StatusOr<int64_t> SkipPickle(absl::string_view bytes) {
  Unpickler unpickler(bytes);
  AQT_RETURN_IF_ERROR(unpickler.Run().status());
  return static_cast<int64_t>(unpickler.size());
}

absl::StatusOr<std::vector<std::string>> ReadPickledTexts(absl::string_view bytes, int64_t* size) {
  Unpickler unpickler(bytes);
  AQT_ASSIGN_OR_RETURN(const Ref root, unpickler.Run());
  *size = static_cast<int64_t>(unpickler.size());
  const auto is_text = [&](Ref item) { return unpickler.at(item).kind == Value::kText; };
  const std::vector<Ref>& items = unpickler.at(root).items;
  if (unpickler.at(root).kind != Value::kList || !std::all_of(items.begin(), items.end(), is_text)) {
    return absl::DataLossError("the file has no list of storages");
  }
  std::vector<std::string> texts;
  for (const Ref item : items) texts.emplace_back(unpickler.at(item).text);
  return texts;
}

}  // namespace aqt::io
