// The reports of --json agree with docs/formats/json.schema.json: each field that a command prints is documented, with
// its type, and each documented field is printed by one of the commands below.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "serving/cli/command.h"
#include "serving/cli/command_test_fixture.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The part of JSON Schema that the reports need: type, const, properties, required, additionalProperties, items.
class Schema {
 public:
  explicit Schema(json definition) : definition_(std::move(definition)) {}

  // What is wrong with a report. Marks the fields that it has.
  std::vector<std::string> Problems(const json& report) {
    problems_.clear();
    Check(definition_, report, "");
    return problems_;
  }
  // The documented fields that no report had.
  std::vector<std::string> Unseen() const {
    std::vector<std::string> all, unseen;
    List(definition_, "", all);
    for (const std::string& path : all) {
      if (!seen_.contains(path)) unseen.push_back(path);
    }
    return unseen;
  }

 private:
  static std::string TypeOf(const json& value) {
    return value.is_number_integer() ? "integer" : value.is_number() ? "number" : value.type_name();
  }
  static bool Allows(const json& types, const std::string& type) {
    if (types.is_string()) return types == type || (types == "number" && type == "integer");
    return std::any_of(types.begin(), types.end(), [&](const json& one) { return Allows(one, type); });
  }

  void Check(const json& schema, const json& value, const std::string& path) {
    if (!Allows(schema.at("type"), TypeOf(value))) {
      problems_.push_back(absl::StrCat(path, " is of type ", TypeOf(value), ", expected ", schema["type"].dump()));
    }
    if (schema.contains("const") && schema["const"] != value) {
      problems_.push_back(absl::StrCat(path, " is ", value.dump(), ", expected ", schema["const"].dump()));
    }
    if (value.is_array()) {
      for (const json& element : value) Check(schema.at("items"), element, path + "[]");
    }
    if (!value.is_object()) return;
    const json properties = schema.value("properties", json::object());
    for (const json& name : schema.value("required", json::array())) {
      if (!value.contains(name)) problems_.push_back(absl::StrCat(path, ".", name.get<std::string>(), " is missing"));
    }
    const json others = schema.value("additionalProperties", json(true));
    for (const auto& [name, member] : value.items()) {
      const std::string below = absl::StrCat(path, ".", name);
      if (properties.contains(name)) {
        seen_.insert(below);
        Check(properties[name], member, below);
      } else if (others.is_object()) {
        Check(others, member, path + "{}");
      } else if (others == false) {
        problems_.push_back(below + " is not documented");
      }
    }
  }
  static void List(const json& schema, const std::string& path, std::vector<std::string>& all) {
    const json properties = schema.value("properties", json::object());
    for (const auto& [name, field] : properties.items()) {
      all.push_back(absl::StrCat(path, ".", name));
      List(field, all.back(), all);
    }
    if (schema.contains("items")) List(schema["items"], path + "[]", all);
    if (schema.contains("additionalProperties") && schema["additionalProperties"].is_object()) {
      List(schema["additionalProperties"], path + "{}", all);
    }
  }

  const json definition_;
  std::vector<std::string> problems_;
  std::set<std::string> seen_;
};

// Relative to the folder in which the test starts.
json ReadDefinitions() {
  std::ifstream file("docs/formats/json.schema.json");
  return json::parse(file)["$defs"];
}

class JsonSchemaTest : public CommandTest {
 protected:
  JsonSchemaTest() : CommandTest(AqtMain), definitions_(ReadDefinitions()) {}

  // Runs the commands, which print one kind of report, and compares them with the schema.
  void ExpectDocumented(const std::string& report, const std::vector<std::vector<std::string>>& commands) {
    ASSERT_TRUE(definitions_.contains(report)) << report;
    Schema schema(definitions_[report]);
    for (std::vector<std::string> args : commands) {
      args.push_back("--json");
      const std::string command = absl::StrJoin(args, " ");
      Run(args);
      const json printed = json::parse(out_, nullptr, /*allow_exceptions=*/false);
      ASSERT_TRUE(printed.is_object()) << command << ": " << err_;
      EXPECT_EQ(printed["schema"], 1) << command;
      EXPECT_THAT(schema.Problems(printed), IsEmpty()) << command;
    }
    EXPECT_THAT(schema.Unseen(), IsEmpty()) << "of " << report;
    checked_.insert(report);
  }
  void Convert(const std::string& in, const std::string& out, const std::string& preset) {
    ASSERT_EQ(Run({"convert", in, out, "--preset", preset, "--progress", "never"}), 0) << err_;
  }

  const json definitions_;
  // Tests run in a folder of their own.
  const std::string model_ = std::filesystem::absolute("tests/golden/models/bert").string();  // with _classes, _tokens
  std::set<std::string> checked_;
};

TEST_F(JsonSchemaTest, EveryReport) {
  Convert("in", "quantized", "w4a16_g32");
  Convert("in", "channels", "w8a8_dynamic");
  Convert("in", "file.safetensors", "w8a16");
  WriteShardedModel("shards", DType::kBF16);
  WriteTensors("short.safetensors", {{"lm_head.weight", MakeWeight(DType::kF32, {3, 4}, 1)}});
  WriteTensors("other.safetensors", {{"lm_head.weight", MakeWeight(DType::kF32, {3, 4}, 2)}});
  ExpectDocumented("inspect", {{"inspect", "in"}, {"inspect", "quantized", "--stats"}, {"inspect", "shards"}});
  ExpectDocumented("plan", {{"plan", "in", "--preset", "w8a8_dynamic"}, {"plan", "shards", "--preset", "nvfp4a16"}});
  ExpectDocumented("convert", {{"convert", "in", "out1", "--preset", "w8a16", "--progress", "never"},
                               {"dequantize", "quantized", "out2", "--progress", "never"}});
  ExpectDocumented("verify", {{"verify", "in", "quantized"}, {"verify", "in", "channels", "--min-snr", "90"}});
  ExpectDocumented("diff", {{"diff", "in", "shards"},
                            {"diff", "in", "in"},
                            {"diff", "in", "quantized"},
                            {"diff", "short.safetensors", "other.safetensors", "--bitwise"},
                            {"diff", "in", "quantized", "--dequantize"},
                            {"diff", "quantized", "channels"},
                            {"diff", "short.safetensors", "file.safetensors"}});
  ExpectDocumented("explain", {{"explain", "in", "lm_head", "--preset", "w8a16"},
                               {"explain", "in", "model.layers.0.mlp.up_proj", "--preset", "w8a16"}});
  WriteText("rules.textproto", "schema: 1 rules { name: 'none' scope: 'other' dot_general { base: 'int8_fwd' } }");
  WriteText("model.txt",
            "in %0: f32[1,64] data \"x\"\nin %1: f32[64,10] param \"fc/kernel\"\n"
            "%2: f32[1,10] = dot_general(%0, %1) {dims=(([1],[0]),([],[]))} @fc\nout %2 data \"logits\"\n");
  ExpectDocumented("config", {{"config", "convert"},
                              {"config", "dot_general", "int8_fwd"},
                              {"config", "inject", "rules.textproto", "--program", "model.txt"}});
  ExpectDocumented("run", {{"run", model_, "--text", "w7 w8", "--text", "w9"},
                           {"run", model_ + "_classes", "--text", "w7 w8", "--pair", "w9"},
                           {"run", model_ + "_tokens", "--text", "w7 w8"}});
  ExpectDocumented("bench", {{"bench", model_, "--shapes", "1x4,2x12", "--seconds", "0"}});
  const absl::StatusOr<Program> program =
      Trace([](absl::Span<const Value> in) { return std::vector<Value>{in[0] * 2.0f}; },
            {{{SlotKind::kData, "x"}, {DType::kF32, {2, 3}}}});
  WriteText("model.aqtprog", *SaveProgram(*program));
  ExpectDocumented("program", {{"program", "model.aqtprog"}});
  std::set<std::string> documented;
  for (const auto& [name, definition] : definitions_.items()) documented.insert(name);
  EXPECT_EQ(checked_, documented);
}

// As JSON, the results and the exit code are those of the text.
TEST_F(JsonSchemaTest, ExitCodesDoNotDependOnIt) {
  Convert("in", "quantized", "w4a16_g32");
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"verify", "in", "quantized"},
                                             {"verify", "in", "quantized", "--min-snr", "90"},
                                             {"diff", "in", "in"},
                                             {"diff", "in", "quantized"},
                                             {"diff", "in", "gone"},
                                             {"explain", "in", "gone", "--preset", "w8a16"},
                                             {"config", "convert", "gone"}}) {
    const int code = Run(args);
    std::vector<std::string> as_json = args;
    as_json.push_back("--json");
    EXPECT_EQ(Run(as_json), code) << absl::StrJoin(args, " ");
    EXPECT_EQ(out_.empty(), code > 1) << "after an error there is no report: " << absl::StrJoin(args, " ");
  }
}

TEST(SchemaTest, ProblemsAreFound) {
  Schema schema(json::parse(R"({"type": "object", "required": ["a"], "additionalProperties": false, "properties": {
    "a": {"type": "array", "items": {"type": ["number", "null"]}},
    "b": {"type": "object", "additionalProperties": {"type": "string"}},
    "c": {"type": "object", "properties": {"d": {"type": "integer", "const": 1}}}}})"));
  EXPECT_THAT(schema.Problems(json::parse(R"({"a": [1, 1.5, null], "b": {"x": "y"}})")), IsEmpty());
  EXPECT_THAT(schema.Unseen(), ElementsAre(".c", ".c.d"));
  EXPECT_THAT(
      schema.Problems(json::parse(R"({"a": ["x"], "b": {"x": 1}, "e": 1, "c": {"d": 2.5}})")),
      ElementsAre(".a[] is of type string, expected [\"number\",\"null\"]",
                  ".b{} is of type integer, expected \"string\"", ".c.d is of type number, expected \"integer\"",
                  ".c.d is 2.5, expected 1", ".e is not documented"));
  EXPECT_THAT(schema.Problems(json::object()), ElementsAre(".a is missing"));
  EXPECT_THAT(schema.Unseen(), IsEmpty());
}

}  // namespace
}  // namespace aqt::serving
