#ifndef AQT_GRAPH_COMPOSITE_FIELDS_H_
#define AQT_GRAPH_COMPOSITE_FIELDS_H_

// The fields of a composite: a struct that names them. Saving, comparison and random tests go through the names, so a
// composite lists its fields once.
//
//   struct CapFields {
//     double low = 0, high = 30;
//     static constexpr const char* kFieldNames[] = {"low", "high"};  // all fields, in order
//     bool operator==(const CapFields&) const = default;
//   };
//   class CapOp : public CompositeOf<CapFields> { ... };  // composite_base.h
//
//   if (const std::optional<CapFields> cap = FieldsOf<CapFields>(op)) ...
//
// A name that files hold never changes. The fields determine Name() and Attributes().

#include <cstddef>
#include <iterator>
#include <optional>
#include <type_traits>
#include <variant>

#include "aqt/graph/composite.h"
#include "aqt/graph/op.h"

namespace aqt {
namespace internal {

// Calls `visit` with each of the N fields. Does not compile if the struct has another number of fields.
template <size_t N>
void VisitMembers(auto& f, auto&& visit) {
  static_assert(N >= 1 && N <= 8, "add a line here");
  // clang-format off
  if constexpr (N == 1) { auto& [a] = f; visit(a); }
  else if constexpr (N == 2) { auto& [a, b] = f; visit(a, b); }
  else if constexpr (N == 3) { auto& [a, b, c] = f; visit(a, b, c); }
  else if constexpr (N == 4) { auto& [a, b, c, d] = f; visit(a, b, c, d); }
  else if constexpr (N == 5) { auto& [a, b, c, d, e] = f; visit(a, b, c, d, e); }
  else if constexpr (N == 6) { auto& [a, b, c, d, e, g] = f; visit(a, b, c, d, e, g); }
  else if constexpr (N == 7) { auto& [a, b, c, d, e, g, h] = f; visit(a, b, c, d, e, g, h); }
  else { auto& [a, b, c, d, e, g, h, i] = f; visit(a, b, c, d, e, g, h, i); }
  // clang-format on
}

// A composite with fields of any type.
class AnyFields {
 public:
  // Whether `other` has fields of the same type and values.
  virtual bool SameFields(const Composite& other) const = 0;

 protected:
  ~AnyFields() = default;
};

}  // namespace internal

// The names of the fields of F. Specialize it for a struct without kFieldNames.
template <class F>
struct FieldNames {
  static constexpr auto& kNames = F::kFieldNames;
};

// Calls visit(name, field) for each field of a struct, const or not. A struct in which some fields depend on others
// defines its own function VisitFields.
template <class F>
void VisitFields(F& fields, auto&& visit) {
  using Struct = std::remove_const_t<F>;
  if constexpr (requires { Struct::VisitFields(fields, visit); }) {
    Struct::VisitFields(fields, visit);
  } else {
    constexpr auto& kNames = FieldNames<Struct>::kNames;
    internal::VisitMembers<std::size(kNames)>(fields, [&](auto&... field) {
      size_t i = 0;
      (visit(kNames[i++], field), ...);
    });
  }
}

// A composite with the fields F.
template <class F>
class HasFields : public internal::AnyFields {
 public:
  virtual F fields() const = 0;
  bool SameFields(const Composite& other) const final;

 protected:
  ~HasFields() = default;
};

// The fields of an operation that has the fields F; null for any other operation.
template <class F>
std::optional<F> FieldsOf(const Composite& op) {
  const auto* own = dynamic_cast<const HasFields<F>*>(&op);
  if (own == nullptr) return std::nullopt;
  return own->fields();
}
template <class F>
std::optional<F> FieldsOf(const Op& op) {
  const auto* composite = std::get_if<CompositeOp>(&op);
  if (composite == nullptr) return std::nullopt;
  return FieldsOf<F>(*composite->impl);
}

template <class F>
bool HasFields<F>::SameFields(const Composite& other) const {
  const std::optional<F> own = FieldsOf<F>(other);
  return own.has_value() && *own == fields();
}

}  // namespace aqt

#endif  // AQT_GRAPH_COMPOSITE_FIELDS_H_
