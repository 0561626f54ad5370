#include "configs/config_text.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "configs/embedded_text.h"
#include "configs/quant.pb.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace aqt::config {
namespace {

using google::protobuf::TextFormat;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<EmbeddedText>& Presets() {
  static const auto* presets =
      new std::vector<EmbeddedText>{{"broken", "schema: 1\nbase: 'nowhere'"},
                                    {"child", "schema: 1 base: 'parent' fwd { rhs { use_fwd_quant: false } }"},
                                    {"parent", R"(schema: 1
         fwd {
           lhs { quantizer { int_symmetric { bits: 4 clip: false } calib_shared_axes { axes: [1, 2, 3] } } }
           rhs { use_fwd_quant: true dequant_mode: DEQUANT_MODE_THIS_INPUT }
         })"}};
  return *presets;
}

struct Resolved {
  absl::Status status;
  std::string text;  // on one line
};

Resolved Resolve(const std::string& text) {
  DotGeneral message;
  TextFormat::ParseInfoTree tree;
  Resolved result;
  result.status = ParseText(text, "x", {}, &message, &tree);
  if (result.status.ok()) result.status = ResolveBase(Presets(), Place("x", &tree), &message);
  TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  printer.SetUseShortRepeatedPrimitives(true);
  printer.PrintToString(message, &result.text);
  return result;
}

TEST(ConfigTextTest, BaseIsMerged) {
  EXPECT_EQ(Resolve("schema: 1 fwd { }").text, "schema: 1 fwd { } ");
  EXPECT_EQ(Resolve("base: 'parent'").text,
            "fwd { lhs { quantizer { int_symmetric { bits: 4 clip: false } calib_shared_axes { axes: [1, 2, 3] } } } "
            "rhs { use_fwd_quant: true dequant_mode: DEQUANT_MODE_THIS_INPUT } } ");
  // Fields are replaced one by one, over two bases; an explicit default counts; lists are replaced entirely.
  EXPECT_EQ(
      Resolve("schema: 1 base: 'child' fwd { lhs { quantizer { int_symmetric { clip: true } calib_shared_axes { axes: "
              "0 } } } }")
          .text,
      "schema: 1 fwd { lhs { quantizer { int_symmetric { bits: 4 clip: true } calib_shared_axes { axes: [0] } } } "
      "rhs { use_fwd_quant: false dequant_mode: DEQUANT_MODE_THIS_INPUT } } ");
  // Another member of a oneof inherits nothing.
  EXPECT_EQ(Resolve("base: 'parent' clear: 'fwd.rhs' fwd { lhs { quantizer { fp8 { } } } }").text,
            "fwd { lhs { quantizer { fp8 { } calib_shared_axes { axes: [1, 2, 3] } } } } ");
  EXPECT_EQ(Resolve("base: 'parent' clear: ['fwd.rhs', 'fwd.lhs.quantizer.calib_shared_axes.axes']").text,
            "fwd { lhs { quantizer { int_symmetric { bits: 4 clip: false } calib_shared_axes { } } } } ");
}

TEST(ConfigTextTest, BaseErrors) {
  const auto message = [](const std::string& text) {
    const absl::Status status = Resolve(text).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message("\n  base: 'nowhere'"), "x:2:3: there is no preset \"nowhere\"; presets are broken, child, parent");
  EXPECT_THAT(message("base: 'broken'"), HasSubstr("preset broken:2:1: there is no preset \"nowhere\""));
  EXPECT_EQ(message("base: 'parent' clear: 'dlhs'"), "x:1:16: \"dlhs\" is not set by the base \"parent\"");
  EXPECT_EQ(message("base: 'parent' clear: ''"), "x:1:16: \"\" is not set by the base \"parent\"");
  EXPECT_EQ(message("base: 'parent' clear: 'fwd.rhs.use_fwd_quant.x'"),
            "x:1:16: \"fwd.rhs.use_fwd_quant.x\" is not set by the base \"parent\"");
  EXPECT_EQ(message("clear: 'fwd'"), "x:1:1: clear names fields of a base, but there is no base");
}

TEST(ConfigTextTest, PlacesAreThoseOfTheText) {
  DotGeneral message;
  TextFormat::ParseInfoTree tree;
  ASSERT_TRUE(ParseText("schema: 1\nclear: 'a'\nclear: 'b'\nfwd {\n  lhs { }\n}", "x", {}, &message, &tree).ok());
  const Place root("x", &tree);
  const Place fwd = root.In(message, "fwd");
  EXPECT_EQ(root.Error("m").message(), "x:1:1: m");
  EXPECT_EQ(root.In(message, "clear", 1).Error("m").message(), "x:3:1: m");
  EXPECT_EQ(root.In(message, "clear").Error("m").message(), "x:2:1: m");
  EXPECT_EQ(root.In(message, "clear", 2).Error("m").message(), "x:1:1: m");
  EXPECT_EQ(fwd.In(message.fwd(), "lhs").Error("m").message(), "x:5:3: m");
  EXPECT_EQ(fwd.In(message.fwd(), "rhs").Error("m").message(), "x:4:1: m");
  EXPECT_EQ(fwd.In(message.fwd(), "rhs").In(message.fwd().rhs(), "quantizer").Error("m").message(), "x:4:1: m");
  EXPECT_EQ(root.In(message, "schema").At(absl::UnimplementedError("m")), absl::UnimplementedError("x:1:1: m"));
  EXPECT_TRUE(root.At(absl::OkStatus()).ok());
  EXPECT_EQ(Place().In(message, "fwd").Error("m").message(), "m");
}

TEST(ConfigTextTest, SchemaAndRenames) {
  DotGeneral message;
  EXPECT_EQ(CheckSchema(message, Place()).message(), "the first field must be  schema: 1");
  message.set_schema(7);
  EXPECT_EQ(CheckSchema(message, Place()).message(), "schema 7 is not known; this version reads schema 1");
  message.set_schema(1);
  EXPECT_TRUE(CheckSchema(message, Place()).ok());

  const Rename renames[] = {{"Tensor", "old", "new"}, {"", "older", "newer"}};
  const auto error = [&](const std::string& text) {
    TextFormat::ParseInfoTree tree;
    return std::string(ParseText(text, "x", renames, &message, &tree).message());
  };
  EXPECT_THAT(error("fwd { lhs { old: 1 } }"), HasSubstr("no field named \"old\". Write new."));
  EXPECT_THAT(error("fwd { old: 1 }"), testing::EndsWith("no field named \"old\"."));
  EXPECT_THAT(error("fwd { older: 1 }"), HasSubstr("no field named \"older\". Write newer."));
  EXPECT_EQ(error("schema: 1"), "");
}

TEST(ConfigTextTest, Names) { EXPECT_THAT(PresetNames(Presets()), ElementsAre("broken", "child", "parent")); }

}  // namespace
}  // namespace aqt::config
