#include "aqt/graph/saved/program_proto.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/interpret/call.h"
#include "aqt/graph/op.h"
#include "aqt/graph/saved/op_fields.h"
#include "aqt/graph/saved/program.pb.h"

namespace aqt {
namespace {

using internal::OpFields;
using saved::SavedAttribute;
using saved::SavedEquation;
using saved::SavedRecord;

constexpr absl::string_view kMagic = "AQTPROG\n";
constexpr uint32_t kVersion = 1;
constexpr char kComposite[] = "composite", kCall[] = "call";
// The limit for nested calls: reading them is recursive.
constexpr int kMaxCalls = 32;

template <class... Parts>
absl::Status Corrupt(const Parts&... parts) {
  return absl::DataLossError(absl::StrCat(parts...));
}

// ---- numbers

void AppendU32(uint32_t x, std::string& out) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(x >> (8 * i)));
}

uint32_t ReadU32(absl::string_view bytes) {
  uint32_t x = 0;
  for (int i = 0; i < 4; ++i) x |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  return x;
}

// CRC-32 as in zip files.
uint32_t Crc32(absl::string_view bytes) {
  static const auto& table = *new std::array<uint32_t, 256>([] {
    std::array<uint32_t, 256> entries;
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320u : 0);
      entries[i] = crc;
    }
    return entries;
  }());
  uint32_t crc = 0xffffffffu;
  for (const char c : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

// ---- attributes

// The number of enumerators, which are saved as text.
template <class Kind>
constexpr int kNumKinds = 0;
template <>
constexpr int kNumKinds<kernels::UnaryKind> = kernels::kNumUnaryKinds;
template <>
constexpr int kNumKinds<kernels::BinaryKind> = kernels::kNumBinaryKinds;
template <>
constexpr int kNumKinds<kernels::CompareKind> = kernels::kNumCompareKinds;
template <>
constexpr int kNumKinds<kernels::ReduceKind> = kernels::kNumReduceKinds;
template <>
constexpr int kNumKinds<kernels::ArgKind> = 2;
template <>
constexpr int kNumKinds<DType> = kNumDTypes;

class AttributeWriter {
 public:
  explicit AttributeWriter(SavedEquation& out) : out_(out) {}

  template <class T>
  void operator()(absl::string_view name, const T& value) {
    SavedAttribute& attribute = *out_.add_attributes();
    attribute.set_name(std::string(name));
    if constexpr (std::is_enum_v<T>) attribute.set_text(std::string(ToString(value)));
    else if constexpr (std::is_same_v<T, double>) attribute.set_number(value);
    else if constexpr (std::is_integral_v<T>) attribute.set_integer(value);
    else {
      auto& values = *attribute.mutable_numbers()->mutable_values();
      values.Add(value.begin(), value.end());
    }
  }

 private:
  SavedEquation& out_;
};

// Reads the attributes in the order of the fields and keeps the first error.
class AttributeReader {
 public:
  explicit AttributeReader(const SavedEquation& in) : in_(in) {}

  template <class T>
  void operator()(absl::string_view name, T& value) {
    if (!status_.ok()) return;
    if (next_ >= in_.attributes_size() || in_.attributes(next_).name() != name) {
      status_ = Corrupt("the attribute \"", name, "\" is missing");
      return;
    }
    if (!Read(in_.attributes(next_++), value)) status_ = Corrupt("the attribute \"", name, "\" has no such value");
  }

  absl::Status Finish() const {
    if (!status_.ok() || next_ == in_.attributes_size()) return status_;
    return absl::UnimplementedError(absl::StrCat("the attribute \"", in_.attributes(next_).name(), "\" is unknown"));
  }

 private:
  template <class T>
  static bool Read(const SavedAttribute& in, T& value) {
    if constexpr (std::is_enum_v<T>) {
      if (!in.has_text()) return false;
      for (int i = 0; i < kNumKinds<T>; ++i) {
        value = static_cast<T>(i);
        if (ToString(value) == in.text()) return true;
      }
      return false;
    } else if constexpr (std::is_same_v<T, double>) {
      value = in.number();
      return in.has_number();
    } else if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(in.integer());
      return in.has_integer() && value == in.integer();
    } else if constexpr (std::is_same_v<T, Shape>) {
      value = Shape(absl::MakeConstSpan(in.numbers().values().data(), in.numbers().values_size()));
      return in.has_numbers();
    } else {
      value.assign(in.numbers().values().begin(), in.numbers().values().end());
      return in.has_numbers();
    }
  }

  const SavedEquation& in_;
  int next_ = 0;
  absl::Status status_;
};

// The context of saving and loading a program.
struct Saver {
  const CompositeCodecs& codecs;
  int num_calls = 0;  // number of enclosing calls

  absl::StatusOr<std::string> Save(const Program& program) const;
  absl::Status SaveOp(const Op& op, SavedEquation& out) const;
  absl::Status SaveComposite(const CompositeOp& op, SavedEquation& out) const;
};

struct Loader {
  const CompositeCodecs& codecs;
  int64_t* statistics_bytes;  // bytes left
  int num_calls = 0;

  absl::StatusOr<Program> Load(absl::string_view bytes) const;
  absl::Status LoadRecord(const SavedRecord& record, Program& program) const;
  absl::Status LoadEquation(const SavedEquation& in, Program& program) const;
  template <size_t... I>
  absl::StatusOr<Op> LoadOp(const SavedEquation& in, std::index_sequence<I...>) const;
  absl::StatusOr<Op> LoadComposite(const SavedEquation& in) const;
  absl::StatusOr<Op> LoadCall(const SavedEquation& in) const;
};

// ---- operations

void AddText(const char* name, std::string text, SavedEquation& out) {
  SavedAttribute& attribute = *out.add_attributes();
  attribute.set_name(name);
  attribute.set_text(std::move(text));
}

// Whether `in` has exactly these two attributes, both texts.
bool HasTexts(const SavedEquation& in, absl::string_view first, absl::string_view second) {
  return in.attributes_size() == 2 && in.attributes(0).name() == first && in.attributes(1).name() == second &&
         in.attributes(0).has_text() && in.attributes(1).has_text();
}

absl::Status TooManyCalls() {
  return absl::UnimplementedError(
      absl::StrCat("a call within ", kMaxCalls, " calls: it can be neither saved nor loaded"));
}

absl::Status Saver::SaveComposite(const CompositeOp& op, SavedEquation& out) const {
  if (const Program* body = CallBody(op)) {
    if (num_calls == kMaxCalls) return TooManyCalls();
    AQT_ASSIGN_OR_RETURN(std::string bytes, (Saver{codecs, num_calls + 1}.Save(*body)));
    out.set_op(kCall);
    AddText("name", CallName(op), out);
    AddText("body", std::move(bytes), out);
    return absl::OkStatus();
  }
  const auto codec = codecs.find(op.impl->Name());
  if (codec == codecs.end()) {
    return absl::UnimplementedError("there is no codec for this composite: it cannot be saved");
  }
  absl::StatusOr<std::string> bytes = codec->second.save(*op.impl);
  if (!bytes.ok()) return Annotate(bytes.status(), "it cannot be saved");
  out.set_op(kComposite);
  AddText("name", op.impl->Name(), out);
  AddText("config", *std::move(bytes), out);
  return absl::OkStatus();
}

absl::Status Saver::SaveOp(const Op& op, SavedEquation& out) const {
  return std::visit(
      [&]<class O>(const O& o) -> absl::Status {
        AttributeWriter write(out);
        if constexpr (std::is_same_v<O, CompositeOp>) {
          return SaveComposite(o, out);
        } else {
          out.set_op(OpFields<O>::kName);
          OpFields<O>::Visit(o, write);
        }
        return absl::OkStatus();
      },
      op);
}

absl::StatusOr<Op> Loader::LoadCall(const SavedEquation& in) const {
  if (!HasTexts(in, "name", "body")) return Corrupt("a call has the attributes name and body");
  if (num_calls == kMaxCalls) return TooManyCalls();
  absl::StatusOr<Program> body = Loader{codecs, statistics_bytes, num_calls + 1}.Load(in.attributes(1).text());
  if (!body.ok()) return Annotate(body.status(), absl::StrCat("\"", in.attributes(0).text(), "\""));
  return MakeCall(in.attributes(0).text(), *std::move(body));
}

absl::StatusOr<Op> Loader::LoadComposite(const SavedEquation& in) const {
  if (!HasTexts(in, "name", "config")) return Corrupt("a composite has the attributes name and config");
  const std::string& name = in.attributes(0).text();
  const auto codec = codecs.find(name);
  if (codec == codecs.end()) {
    return absl::UnimplementedError(absl::StrCat("the composite \"", name, "\" is unknown: there is no codec for it"));
  }
  absl::StatusOr<std::shared_ptr<const Composite>> composite = codec->second.load(in.attributes(1).text());
  if (!composite.ok()) return Annotate(composite.status(), absl::StrCat("the composite \"", name, "\""));
  if (*composite == nullptr || (*composite)->Name() != name) {
    return Corrupt("the composite \"", name, "\" has the configuration of another one");
  }
  for (const std::optional<Array>& statistic : (*composite)->InitialStatistics()) {
    if (statistic.has_value()) *statistics_bytes -= statistic->num_bytes();
  }
  if (*statistics_bytes < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the composite \"", name, "\": with it, the initial statistics of calibrations take more than ",
                     "LoadOptions::max_statistics_bytes"));
  }
  return CompositeOp{*std::move(composite)};
}

template <size_t... I>
absl::StatusOr<Op> Loader::LoadOp(const SavedEquation& in, std::index_sequence<I...>) const {
  if (in.op() == kComposite) return LoadComposite(in);
  if (in.op() == kCall) return LoadCall(in);
  std::optional<absl::StatusOr<Op>> result;
  const auto attempt = [&]<class O>(O op) {
    if constexpr (!std::is_same_v<O, CompositeOp>) {
      if (result.has_value() || in.op() != OpFields<O>::kName) return;
      AttributeReader read(in);
      OpFields<O>::Visit(op, read);
      const absl::Status status = read.Finish();
      result = status.ok() ? absl::StatusOr<Op>(std::move(op)) : absl::StatusOr<Op>(status);
    }
  };
  (attempt(std::variant_alternative_t<I, Op>{}), ...);
  if (result.has_value()) return *std::move(result);
  return absl::UnimplementedError(absl::StrCat("the operation \"", in.op(), "\" is unknown"));
}

// ---- parts of a program

void SaveAval(const Aval& aval, saved::SavedAval& out) {
  out.set_dtype(std::string(ToString(aval.dtype)));
  out.mutable_shape()->Add(aval.shape.begin(), aval.shape.end());
}

absl::StatusOr<Aval> LoadAval(const saved::SavedAval& in) {
  const std::optional<DType> dtype = DTypeFromString(in.dtype());
  if (!dtype.has_value()) return Corrupt("\"", in.dtype(), "\" is no dtype");
  Aval aval{*dtype, Shape(absl::MakeConstSpan(in.shape().data(), in.shape_size()))};
  if (const absl::Status status = CheckShape(aval.shape); !status.ok()) return Corrupt(status.message());
  return aval;
}

void SavePort(const Program::Port& port, saved::SavedPort& out) {
  out.set_var(port.var);
  out.set_kind(std::string(ToString(port.slot.kind)));
  out.set_path(port.slot.path);
}

absl::StatusOr<Program::Port> LoadPort(const saved::SavedPort& in, size_t num_vars) {
  const std::optional<SlotKind> kind = SlotKindFromString(in.kind());
  if (!kind.has_value()) return Corrupt("\"", in.kind(), "\" is no kind of slot");
  if (in.var() < 0 || static_cast<size_t>(in.var()) >= num_vars) return Corrupt("there is no variable ", in.var());
  return Program::Port{in.var(), {*kind, in.path()}};
}

// Whether all elements are legal values of the dtype; a byte can hold others.
bool HasLegalElements(DType dtype, absl::string_view bytes) {
  int64_t low = 0, high = 1;
  if (dtype == DType::kS2 || dtype == DType::kS4) {
    low = IntegerMin(dtype);
    high = IntegerMax(dtype);
  } else if (dtype != DType::kBool) {
    return true;
  }
  return std::all_of(bytes.begin(), bytes.end(), [=](char c) {
    const int64_t value = static_cast<int8_t>(c);
    return value >= low && value <= high;
  });
}

absl::Status LoadConstant(const saved::SavedConstant& in, Program& program) {
  if (in.var() < 0 || static_cast<size_t>(in.var()) >= program.vars.size()) {
    return Corrupt("there is no variable ", in.var());
  }
  const Aval& aval = program.aval(in.var());
  if (static_cast<int64_t>(in.data().size()) / SizeOf(aval.dtype) != aval.shape.num_elements() ||
      static_cast<int64_t>(in.data().size()) % SizeOf(aval.dtype) != 0) {
    return Corrupt(aval.ToString(), " does not have ", in.data().size(), " bytes");
  }
  if (!HasLegalElements(aval.dtype, in.data())) return Corrupt("an element is no ", ToString(aval.dtype));
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(aval);
  if (!in.data().empty()) std::memcpy(builder.data(), in.data().data(), in.data().size());
  if (!program.consts.emplace(in.var(), std::move(builder).Build()).second) {
    return Corrupt("variable ", in.var(), " has two constants");
  }
  return absl::OkStatus();
}

// A copy of `text` that is never freed: SourceLine points to static storage.
const char* Interned(const std::string& text) {
  static std::mutex& mutex = *new std::mutex;
  static std::set<std::string>& names = *new std::set<std::string>;
  const std::lock_guard<std::mutex> lock(mutex);
  return names.insert(text).first->c_str();
}

absl::Status Loader::LoadEquation(const SavedEquation& in, Program& program) const {
  absl::StatusOr<Op> op = LoadOp(in, std::make_index_sequence<std::variant_size_v<Op>>());
  if (!op.ok()) return Annotate(op.status(), in.op());
  Equation equation{*std::move(op), {}, {}, in.scope(), {}};
  equation.in.assign(in.in().begin(), in.in().end());
  equation.out.assign(in.out().begin(), in.out().end());
  equation.where.file = Interned(in.file());
  equation.where.line = in.line();
  program.eqns.push_back(std::move(equation));
  return absl::OkStatus();
}

saved::SavedEnd Counts(const Program& program) {
  saved::SavedEnd end;
  end.set_vars(static_cast<int64_t>(program.vars.size()));
  end.set_inputs(static_cast<int64_t>(program.inputs.size()));
  end.set_constants(static_cast<int64_t>(program.consts.size()));
  end.set_scopes(program.scopes.size() - 1);
  end.set_equations(static_cast<int64_t>(program.eqns.size()));
  end.set_outputs(static_cast<int64_t>(program.outputs.size()));
  return end;
}

bool SameCounts(const saved::SavedEnd& a, const saved::SavedEnd& b) {
  return a.vars() == b.vars() && a.inputs() == b.inputs() && a.constants() == b.constants() &&
         a.scopes() == b.scopes() && a.equations() == b.equations() && a.outputs() == b.outputs();
}

// ---- records

absl::string_view NameOf(SavedRecord::RecordCase record) {
  switch (record) {
    case SavedRecord::kVar: return "variable";
    case SavedRecord::kInput: return "input";
    case SavedRecord::kConstant: return "constant";
    case SavedRecord::kScope: return "scope";
    case SavedRecord::kEquation: return "equation";
    case SavedRecord::kOutput: return "output";
    case SavedRecord::kEnd: return "end";
    case SavedRecord::RECORD_NOT_SET: break;
  }
  return "record";
}

absl::Status Append(const SavedRecord& record, std::string& out) {
  const size_t size = record.ByteSizeLong();
  if (size >= (size_t{1} << 31)) {
    return absl::InvalidArgumentError(absl::StrCat("a record of ", size, " bytes does not fit into a file: 2^31 - 1"));
  }
  const std::string message = record.SerializeAsString();
  AppendU32(static_cast<uint32_t>(message.size()), out);
  AppendU32(Crc32(message), out);
  out += message;
  return absl::OkStatus();
}

absl::Status Loader::LoadRecord(const SavedRecord& record, Program& program) const {
  switch (record.record_case()) {
    case SavedRecord::kVar: {
      AQT_ASSIGN_OR_RETURN(Aval aval, LoadAval(record.var()));
      program.vars.push_back(std::move(aval));
      return absl::OkStatus();
    }
    case SavedRecord::kInput: {
      AQT_ASSIGN_OR_RETURN(Program::Port port, LoadPort(record.input(), program.vars.size()));
      program.inputs.push_back(std::move(port));
      return absl::OkStatus();
    }
    case SavedRecord::kConstant: return LoadConstant(record.constant(), program);
    case SavedRecord::kScope:
      if (const int before = program.scopes.size(); program.scopes.Intern(record.scope()) == before) {
        return absl::OkStatus();
      }
      return Corrupt("the scope \"", record.scope(), "\" is named twice");
    case SavedRecord::kEquation: return LoadEquation(record.equation(), program);
    case SavedRecord::kOutput: {
      AQT_ASSIGN_OR_RETURN(Program::Port port, LoadPort(record.output(), program.vars.size()));
      program.outputs.push_back(std::move(port));
      return absl::OkStatus();
    }
    case SavedRecord::kEnd:
      return SameCounts(record.end(), Counts(program)) ? absl::OkStatus() : Corrupt("records are missing before it");
    case SavedRecord::RECORD_NOT_SET: return Corrupt("has no contents");
  }
  return Corrupt("is unknown");
}

absl::StatusOr<std::string> Saver::Save(const Program& program) const {
  std::string out(kMagic);
  AppendU32(kVersion, out);
  for (const Aval& aval : program.vars) {
    SavedRecord record;
    SaveAval(aval, *record.mutable_var());
    AQT_RETURN_IF_ERROR(Append(record, out));
  }
  for (const Program::Port& port : program.inputs) {
    SavedRecord record;
    SavePort(port, *record.mutable_input());
    AQT_RETURN_IF_ERROR(Append(record, out));
  }
  for (const auto& [var, array] : program.consts) {
    SavedRecord record;
    record.mutable_constant()->set_var(var);
    if (array.num_bytes() > 0) record.mutable_constant()->set_data(array.data(), array.num_bytes());
    AQT_RETURN_IF_ERROR(Annotate(Append(record, out), absl::StrCat("constant ", var, ", ", array.aval().ToString())));
  }
  for (int scope = 1; scope < program.scopes.size(); ++scope) {
    SavedRecord record;
    record.set_scope(program.scopes[scope]);
    AQT_RETURN_IF_ERROR(Append(record, out));
  }
  for (const Equation& eqn : program.eqns) {
    SavedRecord record;
    SavedEquation& saved = *record.mutable_equation();
    if (const absl::Status status = SaveOp(eqn.op, saved); !status.ok()) {
      return DescribeError(status, program, eqn);
    }
    saved.mutable_in()->Add(eqn.in.begin(), eqn.in.end());
    saved.mutable_out()->Add(eqn.out.begin(), eqn.out.end());
    saved.set_scope(eqn.scope);
    saved.set_file(eqn.where.file);
    saved.set_line(eqn.where.line);
    if (const absl::Status status = Append(record, out); !status.ok()) return DescribeError(status, program, eqn);
  }
  for (const Program::Port& port : program.outputs) {
    SavedRecord record;
    SavePort(port, *record.mutable_output());
    AQT_RETURN_IF_ERROR(Append(record, out));
  }
  SavedRecord end;
  *end.mutable_end() = Counts(program);
  AQT_RETURN_IF_ERROR(Append(end, out));
  return out;
}

absl::StatusOr<Program> Loader::Load(absl::string_view bytes) const {
  constexpr size_t kHeader = 12, kFrame = 8;
  if (bytes.size() < kHeader || !IsSavedProgram(bytes)) {
    return Corrupt("byte 0: no saved program begins so; it begins with AQTPROG and has at least 12 bytes");
  }
  const uint32_t version = ReadU32(bytes.substr(kMagic.size()));
  if (version == 0 || version > kVersion) {
    return absl::UnimplementedError(
        absl::StrCat("byte 8: the format has version ", version, "; this library reads version ", kVersion));
  }
  Program program;
  // The last record and its index among those of its kind.
  SavedRecord::RecordCase last = SavedRecord::kVar;
  int64_t number = -1;
  size_t at = kHeader;
  while (last != SavedRecord::kEnd) {
    const auto place = [&] {
      return number < 0 ? std::string("after the header") : absl::StrCat("after ", NameOf(last), " ", number);
    };
    if (bytes.size() - at < kFrame || bytes.size() - at - kFrame < ReadU32(bytes.substr(at))) {
      return Corrupt("byte ", at, ", ", place(), ": the file ends within a record");
    }
    const absl::string_view message = bytes.substr(at + kFrame, ReadU32(bytes.substr(at)));
    SavedRecord record;
    if (Crc32(message) != ReadU32(bytes.substr(at + 4)) ||
        !record.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
      return Corrupt("byte ", at, ", ", place(), ": the bytes of the record were altered");
    }
    const size_t known = record.ByteSizeLong();
    record.DiscardUnknownFields();
    if (record.ByteSizeLong() != known) {
      return absl::UnimplementedError(absl::StrCat("byte ", at, ", ", place(),
                                                   ": the record has fields that this version does not know; read the "
                                                   "file with the version that wrote it"));
    }
    if (record.record_case() < last) {
      return Corrupt("byte ", at, ", ", place(), ": ", NameOf(record.record_case()), " is out of order");
    }
    number = record.record_case() == last ? number + 1 : 0;
    last = record.record_case();
    if (const absl::Status status = LoadRecord(record, program); !status.ok()) {
      return Annotate(status, absl::StrCat("byte ", at, ", ", NameOf(last), " ", number));
    }
    at += kFrame + message.size();
  }
  if (at != bytes.size()) return Corrupt("byte ", at, ": ", bytes.size() - at, " bytes follow the end");
  if (const absl::Status status = Check(program); !status.ok()) return Corrupt(status.message());
  return program;
}

}  // namespace

absl::StatusOr<std::string> SaveProgram(const Program& program, const CompositeCodecs& codecs) {
  return Saver{codecs}.Save(program);
}

bool IsSavedProgram(absl::string_view bytes) { return bytes.substr(0, kMagic.size()) == kMagic; }

absl::StatusOr<Program> LoadProgram(absl::string_view bytes, const CompositeCodecs& codecs,
                                    const LoadOptions& options) {
  int64_t statistics_bytes = options.max_statistics_bytes;
  return Loader{codecs, &statistics_bytes}.Load(bytes);
}

}  // namespace aqt
