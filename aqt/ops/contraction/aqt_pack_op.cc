#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/ops/contraction/aqt_dot_ops.h"
#include "aqt/ops/panel_cache.h"
#include "aqt/quant/contraction/dot_operand.h"
#include "aqt/quant/contraction/engine/packed_side.h"
#include "aqt/quant/contraction/engine/pass.h"
#include "aqt/quant/contraction/engine/prepared_operand_impl.h"
#include "aqt/quant/contraction/engine/product_plan.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt::internal {
namespace {

std::string ToText(const PanelKey& key) {
  const kernels::PanelFormat& f = key.format;
  const auto axes = [](const Axes& list) { return absl::StrJoin(list, ","); };
  return absl::StrCat(key.digits ? absl::StrCat("for digits in groups of ", key.scale_group, ", ") : "", "layout ",
                      static_cast<int>(f.layout), ", element ", static_cast<int>(f.element),
                      f.has_correction ? ", corrected" : "", ", width ", f.width, ", group ", f.k_group, ", axes [",
                      axes(key.axes.batch), "][", axes(key.axes.rows), "][", axes(key.axes.k), "], ",
                      key.feature_groups, " feature groups, ",
                      key.hadamard_block != 0 ? absl::StrCat("hadamard=", key.hadamard_block, ", ") : "",
                      key.dequantized ? "dequantized " : "", ToString(key.dtype));
}

class PackOp : public DotOp {
 public:
  // (qvalue, scale) or (x)
  PackOp(std::shared_ptr<const AqtDot::Impl> dot, Side side, bool has_scale)
      : dot_(std::move(dot)), side_(side), has_scale_(has_scale), key_(*dot_->engine().forward().panels(side)) {}

  std::string Name() const override { return "aqt_pack"; }
  const AqtDot::Impl& dot() const override { return *dot_; }
  std::string Attributes() const override {
    return absl::StrCat(internal::Name(side_), " of ", dot_->name, ", ", ToText(key_));
  }

  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    const size_t expected = has_scale_ ? 2 : 1;
    if (in.size() != expected) {
      return absl::InvalidArgumentError(absl::StrCat("takes ", expected, " operands, got ", in.size()));
    }
    if (has_scale_) {
      AQT_ASSIGN_OR_RETURN(const AqtDot::QuantizedAvals own, dot_->plan().quantized_avals(side_));
      AQT_RETURN_IF_ERROR(ExpectAval("the qvalue", in[0], own.qvalue));
    } else {
      AQT_RETURN_IF_ERROR(ExpectAval("the operand", in[0], dot_->aval(side_)));
    }
    return std::vector<Aval>{{DType::kU8, {*dot_->engine().PanelBytesOf(side_)}}};
  }

  // All programs of the process share one packed form of an array.
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool>) const override {
    const std::string form = absl::StrCat(ToText(key_), " of ", ToString(dot_->aval(side_).dtype));
    const auto pack = [&]() -> absl::StatusOr<Array> {
      QTensor qtensor{.dequant_dtype = dot_->aval(side_).dtype};
      if (has_scale_) {
        qtensor.qvalue = in[0];
        qtensor.scale = {in[1]};
      } else {
        AQT_ASSIGN_OR_RETURN(qtensor, dot_->engine().QuantizeOperand(side_, in[0], {}));  // tiled, if there are tiles
      }
      AQT_ASSIGN_OR_RETURN(const PreparedOperand prepared,
                           dot_->plan().Prepare(side_, std::move(qtensor), CurrentRuntime()));
      const Panels& panels = *prepared.impl().panels;
      return Array(Aval{DType::kU8, {panels.bytes}}, panels.data);
    };
    const bool reads_scale = key_.dequantized || key_.scale_group != 0;
    AQT_ASSIGN_OR_RETURN(Array panels, PanelCache::OfProcess().Get(reads_scale ? in : in.first(1), form, pack));
    return std::vector<Array>{std::move(panels)};
  }

  bool has_expansion() const override { return false; }

 private:
  const std::shared_ptr<const AqtDot::Impl> dot_;
  const Side side_;
  const bool has_scale_;
  const PanelKey key_;
};

}  // namespace

std::shared_ptr<const Composite> MakePackOp(std::shared_ptr<const AqtDot::Impl> dot, Side side, bool has_scale) {
  return std::make_shared<PackOp>(std::move(dot), side, has_scale);
}

}  // namespace aqt::internal
