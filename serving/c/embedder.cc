// Text encoders.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "aqt/c_api.h"
#include "aqt/core/array_ref.h"
#include "aqt/graph/context.h"
#include "aqt/io/file.h"
#include "aqt/models/text/text_embedder.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "serving/c/array.h"
#include "serving/c/call.h"
#include "serving/cli/programs/model_preset.h"

using aqt::capi::Call;
using aqt::capi::Check;
using aqt::capi::NotNull;
using aqt::capi::TextOf;

namespace {

struct Opened {
  aqt::models::TextEmbedder embedder;
  std::vector<std::string> warnings;  // about its quantization
};

}  // namespace

struct aqt_embedder {
  static constexpr aqt::capi::Tag kTag = aqt::capi::Tag::kEmbedder;
  static constexpr char kName[] = "aqt_embedder";
  explicit aqt_embedder(Opened opened) : embedder(std::move(opened.embedder)), notes(std::move(opened.warnings)) {
    notes.insert(notes.end(), embedder.model().notes().begin(), embedder.model().notes().end());
  }
  int64_t width() const { return embedder.model().pooling().width; }

  aqt::capi::Tag tag = kTag;
  const aqt::models::TextEmbedder embedder;
  std::vector<std::string> notes;
};

namespace {

absl::StatusOr<aqt::serving::ModelQuantization> Quantization(const char* folder, const aqt_embedder_options& options) {
  if (options.preset != nullptr && options.config != nullptr) {
    return absl::InvalidArgumentError("options has both a preset and a config; leave one out");
  }
  AQT_ASSIGN_OR_RETURN(
      aqt::serving::ModelQuantization quantization,
      aqt::serving::OpenModelPreset(aqt::io::LocalFileSystem(), folder,
                                    {std::string(TextOf(options.preset)), std::string(TextOf(options.calibration))},
                                    "calibration"));
  if (options.config != nullptr) {
    AQT_ASSIGN_OR_RETURN(quantization.config, aqt::InjectConfigFromText(options.config, "config"));
  }
  return quantization;
}

absl::Status Embed(const aqt_embedder* embedder, const char* const* texts, const size_t* sizes, size_t count,
                   const aqt_call_options* options, const aqt_array* out, aqt_text_info* infos) {
  AQT_RETURN_IF_ERROR(Check(embedder, "embedder"));
  if (count > 0) AQT_RETURN_IF_ERROR(NotNull(texts, "texts"));
  AQT_ASSIGN_OR_RETURN(const aqt::MutableArrayRef to, aqt::capi::ToMutableArrayRef(out, "out"));
  const int64_t rows = static_cast<int64_t>(std::min<size_t>(count, INT64_MAX));
  AQT_RETURN_IF_ERROR(aqt::capi::CheckAval(to.aval(), {aqt::DType::kF32, {rows, embedder->width()}}, "out"));
  AQT_ASSIGN_OR_RETURN(const aqt::capi::CallOptions call, aqt::capi::ToCallOptions(options));
  const aqt::UseExecutor use(call.executor);
  for (size_t i = 0; i < count; ++i) {
    const std::string name = absl::StrCat("text ", i + 1);
    AQT_RETURN_IF_ERROR(NotNull(texts[i], name.c_str()));
    const size_t size = sizes != nullptr ? sizes[i] : std::strlen(texts[i]);
    const absl::StatusOr<aqt::models::TextEmbedding> embedding =
        embedder->embedder.Embed(absl::string_view(texts[i], size));
    AQT_RETURN_IF_ERROR(aqt::Annotate(embedding.status(), name));
    float* const row = to.As<float>() + static_cast<int64_t>(i) * to.strides[0];
    for (size_t j = 0; j < embedding->values.size(); ++j) {
      row[static_cast<int64_t>(j) * to.strides[1]] = embedding->values[j];
    }
    if (infos != nullptr) infos[i] = {embedding->tokens, embedding->truncated};
  }
  return absl::OkStatus();
}

}  // namespace

aqt_code aqt_embedder_open(const char* folder, const aqt_embedder_options* options, aqt_embedder** embedder,
                           aqt_error** error) {
  return aqt::capi::Make(embedder, error, [&]() -> absl::StatusOr<Opened> {
    AQT_RETURN_IF_ERROR(NotNull(folder, "folder"));
    AQT_ASSIGN_OR_RETURN(const aqt_embedder_options given, aqt::capi::Read(options, "options"));
    AQT_ASSIGN_OR_RETURN(aqt::serving::ModelQuantization quantization, Quantization(folder, given));
    AQT_ASSIGN_OR_RETURN(aqt::models::TextEmbedder embedder,
                         aqt::models::TextEmbedder::Open(aqt::io::LocalFileSystem(), folder, quantization.config,
                                                         quantization.weights()));
    return Opened{std::move(embedder), std::move(quantization.warnings)};
  });
}

int64_t aqt_embedder_width(const aqt_embedder* embedder) {
  return Check(embedder, "embedder").ok() ? embedder->width() : 0;
}

int64_t aqt_embedder_max_length(const aqt_embedder* embedder) {
  return Check(embedder, "embedder").ok() ? embedder->embedder.max_length() : 0;
}

aqt_code aqt_embedder_notes(const aqt_embedder* embedder, aqt_string** notes, aqt_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (notes != nullptr) *notes = nullptr;
    AQT_RETURN_IF_ERROR(Check(embedder, "embedder"));
    return aqt::capi::Return(absl::StrJoin(embedder->notes, "\n"), notes);
  });
}

aqt_code aqt_embedder_embed(const aqt_embedder* embedder, const char* const* texts, const size_t* sizes, size_t count,
                            const aqt_call_options* options, const aqt_array* out, aqt_text_info* infos,
                            aqt_error** error) {
  return Call(error, [&]() { return Embed(embedder, texts, sizes, count, options, out, infos); });
}

void aqt_embedder_free(aqt_embedder* embedder) { aqt::capi::Free(embedder); }
