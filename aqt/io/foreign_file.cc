#include "aqt/io/foreign_file.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace aqt::io {
namespace {

constexpr char kPyTorch[] = "PyTorch";
constexpr char kGguf[] = "GGUF";
constexpr char kFlax[] = "Flax";
constexpr char kKeras[] = "TensorFlow or Keras";
constexpr char kOnnx[] = "ONNX";
constexpr char kNumPy[] = "NumPy";
constexpr char kRust[] = "Rust";
constexpr char kTfLite[] = "TensorFlow Lite";
constexpr char kPaddle[] = "PaddlePaddle";

struct Ending {
  absl::string_view suffix;
  absl::string_view format;
};
constexpr Ending kEndings[] = {
    {".bin", kPyTorch},    {".pt", kPyTorch},      {".pth", kPyTorch}, {".ckpt", kPyTorch}, {".gguf", kGguf},
    {".ggml", kGguf},      {".msgpack", kFlax},    {".h5", kKeras},    {".keras", kKeras},  {".onnx", kOnnx},
    {".onnx_data", kOnnx}, {".onnx.data", kOnnx},  {".npz", kNumPy},   {".npy", kNumPy},    {".ot", kRust},
    {".tflite", kTfLite},  {".pdparams", kPaddle},
};

// The first bytes of a format, its description, and the remedy.
struct Beginning {
  absl::string_view bytes;
  absl::string_view what;
  absl::string_view remedy;
};
constexpr absl::string_view kSaveAsSafetensors = "load the model and save it as safetensors first";
constexpr absl::string_view kDownloadAgain = "download it again";
const Beginning kBeginnings[] = {
    {"version https://git-lfs", "a Git LFS pointer", "fetch the file with `git lfs pull`"},
    {"PK\x03\x04", "a zip archive, such as a PyTorch .bin or NumPy .npz", "convert it to safetensors first"},
    {"GGUF", "a GGUF file", "convert the model that it was made from"},
    {"\x89HDF", "an HDF5 file, as Keras writes", kSaveAsSafetensors},
    {"\x93NUMPY", "a NumPy array", kSaveAsSafetensors},
    {"\x80\x02", "a pickle, such as an older PyTorch .bin", kSaveAsSafetensors},
    {"\x80\x03", "a pickle, such as an older PyTorch .bin", kSaveAsSafetensors},
    {"\x80\x04", "a pickle, such as an older PyTorch .bin", kSaveAsSafetensors},
    {"\x80\x05", "a pickle, such as an older PyTorch .bin", kSaveAsSafetensors},
    {"\x1f\x8b", "a gzip archive", "unpack it first"},
    {"Entry not found", "the error message of a download", kDownloadAgain},
    {"Access to model", "the error message of a download", "download it again, with access to the model"},
    {"Repository not found", "the error message of a download", kDownloadAgain},
    {"Invalid ", "the error message of a download", kDownloadAgain},
    {"Unauthorized", "the error message of a download", "download it again, with access to the model"},
    {"{\"error\"", "the error message of a download", kDownloadAgain},
};

}  // namespace

std::string GuessContent(absl::string_view begin) {
  for (const Beginning& known : kBeginnings) {
    if (absl::StartsWith(begin, known.bytes)) return absl::StrCat("; it looks like ", known.what, ": ", known.remedy);
  }
  if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(begin), "<")) {
    return absl::StrCat("; it looks like a web page, not the intended file: ", kDownloadAgain);
  }
  return "";
}

absl::string_view WeightFormatOfName(absl::string_view name) {
  for (const Ending& ending : kEndings) {
    if (absl::EndsWithIgnoreCase(name, ending.suffix)) return ending.format;
  }
  return "";
}

absl::string_view RemedyForFormat(absl::string_view format) {
  if (format == kPyTorch) {
    return "load the model and save it as safetensors first (save_pretrained of transformers and diffusers does)";
  }
  if (format == kGguf) return "it is a quantized or converted copy; convert the model that it was made from";
  return "load the model and save it as safetensors first";
}

}  // namespace aqt::io
