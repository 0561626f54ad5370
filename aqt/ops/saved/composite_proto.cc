#include "aqt/ops/saved/composite_proto.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/composite_fields.h"
#include "aqt/ops/contraction/aqt_dot_fields.h"
#include "aqt/ops/saved/composite.pb.h"
#include "aqt/ops/saved/composite_kinds.h"
#include "aqt/ops/saved/fields_proto.h"

namespace aqt {
namespace {

using internal::CompositeKind;
using internal::Corrupt;
using internal::DotForwardFields;
using internal::OperandForm;
using saved::SavedComposite;
using Made = absl::StatusOr<std::shared_ptr<const Composite>>;

template <class F>
absl::Status CheckForThisMachineOnly(const F&) {
  return absl::OkStatus();
}
absl::Status CheckForThisMachineOnly(const DotForwardFields& fields) {
  for (const OperandForm form : {fields.lhs, fields.rhs}) {
    if (form != OperandForm::kPacked && form != OperandForm::kPackedWithScale) continue;
    return absl::UnimplementedError("an operand is packed for the kernels of this machine");
  }
  return absl::OkStatus();
}

template <class F>
absl::StatusOr<std::string> SaveAs(const std::string& field, const Composite& op) {
  const std::optional<F> fields = FieldsOf<F>(op);
  if (!fields.has_value()) return absl::UnimplementedError("another composite has the name of this one");
  AQT_RETURN_IF_ERROR(CheckForThisMachineOnly(*fields));
  SavedComposite saved;
  internal::Write(*fields, internal::Out{saved, field});
  return saved.SerializeAsString();
}

template <class F>
Made LoadAs(const std::string& field, absl::string_view bytes) {
  SavedComposite saved;
  if (bytes.size() > std::numeric_limits<int32_t>::max() ||
      !saved.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Corrupt("the configuration cannot be read");
  }
  saved.DiscardUnknownFields();
  if (saved.ByteSizeLong() != bytes.size()) {
    return absl::UnimplementedError("the configuration has fields that this version does not know");
  }
  if (saved.kind_case() == SavedComposite::KIND_NOT_SET) return Corrupt("there is no configuration");
  const internal::In in{saved, field};
  if (!in.reflect().HasField(saved, in.field())) return Corrupt("the configuration is that of another operation");
  F fields;
  absl::Status status = internal::Read(in, fields);
  Made op = status.ok() ? internal::MakeComposite(fields) : Made(status);
  // A file of this library never holds an operation that the library refuses to make.
  if (absl::IsInvalidArgument(op.status())) return absl::DataLossError(op.status().message());
  return op;
}

// For aqt_pack and the FP8 layers. The operations that read their panels refuse by themselves.
absl::StatusOr<std::string> SavePanels(const Composite&) {
  return absl::UnimplementedError("an operand is packed for the kernels of this machine");
}
Made LoadPanels(absl::string_view) {
  return Corrupt("no file has an operand that is packed for the kernels of a machine");
}

}  // namespace

namespace ops {

const CompositeCodecs& ProgramCodecs() {
  static const auto& codecs = *new CompositeCodecs([] {
    CompositeCodecs all;
    const auto add = [&]<class F>(const CompositeKind<F>& kind) {
      const std::string field = kind.field;
      for (const std::string& name : kind.names) {
        all[name] = {[field](const Composite& op) { return SaveAs<F>(field, op); },
                     [field](absl::string_view bytes) { return LoadAs<F>(field, bytes); }};
      }
    };
    std::apply([&](const auto&... kind) { (add(kind), ...); }, internal::CompositeKinds());
    for (const char* name : {"aqt_pack", "fp8_pack", "fp8_packed_dot"}) all[name] = {SavePanels, LoadPanels};
    return all;
  }());
  return codecs;
}

}  // namespace ops
}  // namespace aqt
