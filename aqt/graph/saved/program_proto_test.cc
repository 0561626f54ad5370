// AQT_TEST_WRITE=FOLDER writes new files for testdata. Use it only for a new version of the format, under new names.

#include "aqt/graph/saved/program_proto.h"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/call.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program.pb.h"
#include "aqt/graph/trace.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random_programs.h"
#include "aqt/testing/same_bits.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::saved::SavedRecord;
using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

std::string Text(const Program& program) { return ToText(program, {.source_lines = true}); }

TEST(ProgramProtoTest, RandomProgramsComeBack) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const absl::StatusOr<Program> program = testing::RandomProgram(seed, 30);
    ASSERT_THAT(program, IsOk());
    const absl::StatusOr<std::string> bytes = SaveProgram(*program);
    ASSERT_THAT(bytes, IsOk()) << seed;
    const absl::StatusOr<Program> loaded = LoadProgram(*bytes);
    ASSERT_THAT(loaded, IsOk()) << seed;
    ASSERT_EQ(Text(*loaded), Text(*program)) << seed;
    ASSERT_EQ(*SaveProgram(*loaded), *bytes) << seed;
    const std::vector<Array> args = testing::RandomProgramArgs(seed);
    const absl::StatusOr<std::vector<Array>> want = Eval(*program, args), got = Eval(*loaded, args);
    ASSERT_THAT(want, IsOk());
    ASSERT_THAT(got, IsOk());
    for (size_t i = 0; i < want->size(); ++i) ASSERT_TRUE(SameBits((*got)[i], (*want)[i])) << seed << " output " << i;
  }
}

// A program with slots of all kinds, scopes, and constants of types that do not use all their bits.
Program Small() {
  const auto fn = [](In in) {
    const Value table = Value(Array::Of<Int4>({Int4{-8}, Int4{7}}, {2}));
    Value y;
    {
      const NamedScope scope("fc");
      y = ops::Pad(ops::MatMul(in[0], in[1]), {0, 1}, {0, 0}, {}, -1.5);
    }
    WriteSlot({SlotKind::kStat, "fc/max"}, ops::ReduceMax(y));
    return Values{ops::Select(Value(Array::Of<bool>({true, false, true, true, false}, {5})), y, 2.0),
                  ops::Cast(table, DType::kF32) * ops::Iota(DType::kF32, {2}, 0)};
  };
  return *Trace(fn,
                {{{SlotKind::kData, "x"}, {DType::kF32, {2, 3}}}, {{SlotKind::kParam, "w"}, {DType::kF32, {3, 4}}}});
}

TEST(ProgramProtoTest, AProgramComesBack) {
  const Program program = Small();
  const absl::StatusOr<Program> loaded = LoadProgram(*SaveProgram(program));
  ASSERT_THAT(loaded, IsOk());
  EXPECT_EQ(Text(*loaded), Text(program));
  ASSERT_THAT(LoadProgram(*SaveProgram(Program())), IsOk());
}

TEST(ProgramProtoTest, EveryMissingByteIsSeen) {
  const std::string bytes = *SaveProgram(Small());
  for (size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_THAT(LoadProgram(absl::string_view(bytes).substr(0, size)), FailsWith(kDataLoss, {"byte "})) << size;
  }
  EXPECT_THAT(LoadProgram(bytes + "x"),
              FailsWith(kDataLoss, {absl::StrCat("byte ", bytes.size(), ": 1 bytes follow")}));
}

TEST(ProgramProtoTest, EveryAlteredByteIsSeen) {
  const std::string bytes = *SaveProgram(Small());
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int mask : {1, 0x80, 0xff}) {
      std::string altered = bytes;
      altered[at] = static_cast<char>(altered[at] ^ mask);
      const absl::Status status = LoadProgram(altered).status();
      ASSERT_TRUE(status.code() == kDataLoss || status.code() == kUnimplemented) << at << " " << status;
      ASSERT_NE(status.message().find("byte "), std::string::npos) << status;
    }
  }
}

// The records of a program, to be modified and written again.
std::vector<SavedRecord> Records(const std::string& bytes) {
  std::vector<SavedRecord> records;
  for (size_t at = 12; at < bytes.size();) {
    uint32_t size = 0;
    for (int i = 3; i >= 0; --i) size = size << 8 | static_cast<uint8_t>(bytes[at + i]);
    records.emplace_back();
    EXPECT_TRUE(records.back().ParseFromString(bytes.substr(at + 8, size)));
    at += 8 + size;
  }
  return records;
}

std::string Written(const std::vector<SavedRecord>& records) {
  std::string out("AQTPROG\n\1\0\0\0", 12);
  for (const SavedRecord& record : records) {
    const std::string message = record.SerializeAsString();
    uint32_t crc = ~0u;
    for (const char c : message) {
      crc ^= static_cast<uint8_t>(c);
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320u : 0);
    }
    for (const uint32_t word : {static_cast<uint32_t>(message.size()), ~crc}) {
      for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(word >> (8 * i)));
    }
    out += message;
  }
  return out;
}

// A change to a record that makes it well formed nonsense.
struct Nonsense {
  std::function<void(SavedRecord&)> change;
  std::vector<std::string> parts;
  absl::StatusCode code = kDataLoss;
};

std::vector<SavedRecord> RecordsOfSmall() { return Records(*SaveProgram(Small())); }

// The first record of Small() with this property.
size_t Find(const std::function<bool(const SavedRecord&)>& is) {
  const std::vector<SavedRecord> records = RecordsOfSmall();
  for (size_t i = 0; i < records.size(); ++i) {
    if (is(records[i])) return i;
  }
  ADD_FAILURE() << "no such record";
  return 0;
}
size_t FindEquation(absl::string_view op) {
  return Find([&](const SavedRecord& r) { return r.has_equation() && r.equation().op() == op; });
}
size_t FindInput() {
  return Find([](const SavedRecord& r) { return r.has_input(); });
}
size_t FindConstant(size_t bytes) {
  return Find([&](const SavedRecord& r) { return r.has_constant() && r.constant().data().size() == bytes; });
}

void ExpectRefused(size_t record, const std::vector<Nonsense>& cases) {
  for (const Nonsense& c : cases) {
    std::vector<SavedRecord> changed = RecordsOfSmall();
    c.change(changed[record]);
    EXPECT_THAT(LoadProgram(Written(changed)), FailsWith(c.code, c.parts));
  }
}

TEST(ProgramProtoTest, RecordsAreWrittenAsTheyWereRead) { EXPECT_EQ(Written(RecordsOfSmall()), *SaveProgram(Small())); }

TEST(ProgramProtoTest, NonsenseEquationsAreNamed) {
  ExpectRefused(
      FindEquation("pad"),
      {
          {[](SavedRecord& r) { r.mutable_equation()->set_op("frobnicate"); },
           {"equation ", "the operation \"frobnicate\" is unknown"},
           kUnimplemented},
          {[](SavedRecord& r) {
             saved::SavedEquation& equation = *r.mutable_equation();
             equation.GetReflection()->MutableUnknownFields(&equation)->AddVarint(100, 1);
           },
           {"byte ", "the record has fields that this version does not know"},
           kUnimplemented},
          {[](SavedRecord& r) { r.mutable_equation()->mutable_attributes(3)->set_name("values"); },
           {"pad: the attribute \"value\" is missing"}},
          {[](SavedRecord& r) { r.mutable_equation()->mutable_attributes()->RemoveLast(); },
           {"pad: the attribute \"value\" is missing"}},
          {[](SavedRecord& r) { r.mutable_equation()->add_attributes()->set_name("more"); },
           {"pad: the attribute \"more\" is unknown"},
           kUnimplemented},
          {[](SavedRecord& r) { r.mutable_equation()->mutable_attributes(3)->set_integer(1); },
           {"the attribute \"value\" has no such value"}},
          {[](SavedRecord& r) { r.mutable_equation()->mutable_attributes(0)->mutable_numbers()->add_values(1); },
           {"pad [fc]: low has 3 numbers for 2 axes"}},
          {[](SavedRecord& r) { r.mutable_equation()->set_scope(7); }, {"unknown scope"}},
          {[](SavedRecord& r) { r.mutable_equation()->set_in(0, 99); }, {"variable 99"}},
          {[](SavedRecord& r) { r.mutable_equation()->set_out(0, -1); }, {"variable -1"}},
      });
  ExpectRefused(FindEquation("reduce"),
                {
                    {[](SavedRecord& r) { r.mutable_equation()->mutable_attributes(0)->set_text("median"); },
                     {"reduce: the attribute \"kind\" has no such value"}},
                    {[](SavedRecord& r) { r.mutable_equation()->mutable_attributes(2)->set_integer(2); },
                     {"the attribute \"keepdims\" has no such value"}},
                });
}

TEST(ProgramProtoTest, NonsenseVariablesAndInputsAreNamed) {
  ExpectRefused(
      0, {
             {[](SavedRecord& r) { r.mutable_var()->set_dtype("f31"); }, {"byte 12, variable 0: \"f31\" is no dtype"}},
             {[](SavedRecord& r) { r.mutable_var()->add_shape(-1); }, {"variable 0: ", "negative extent"}},
         });
  ExpectRefused(
      FindInput(),
      {
          {[](SavedRecord& r) { r.mutable_input()->set_kind("weight"); }, {"input 0: \"weight\" is no kind of slot"}},
          {[](SavedRecord& r) { r.mutable_input()->set_var(1000); }, {"input 0: ", "variable 1000"}},
      });
}

TEST(ProgramProtoTest, NonsenseConstantsAreNamed) {
  ExpectRefused(FindConstant(5), {
                                     {[](SavedRecord& r) { (*r.mutable_constant()->mutable_data())[0] = 2; },
                                      {"constant ", "an element is no bool"}},
                                 });
  ExpectRefused(FindConstant(2), {
                                     {[](SavedRecord& r) { (*r.mutable_constant()->mutable_data())[0] = 8; },
                                      {"constant ", "an element is no s4"}},
                                     {[](SavedRecord& r) { r.mutable_constant()->mutable_data()->push_back(0); },
                                      {"constant ", "s4[2] does not have 3 bytes"}},
                                 });
}

TEST(ProgramProtoTest, NonsenseScopesAndEndsAreNamed) {
  ExpectRefused(Find([](const SavedRecord& r) { return !r.scope().empty(); }),
                {
                    {[](SavedRecord& r) { r.set_scope(""); }, {"scope 0: ", "is named twice"}},
                    {[](SavedRecord& r) { r.clear_record(); }, {"out of order"}},
                });
  ExpectRefused(RecordsOfSmall().size() - 1,
                {
                    {[](SavedRecord& r) { r.mutable_end()->set_outputs(9); }, {"end 0: records are missing before it"}},
                });
}

TEST(ProgramProtoTest, WrongOrdersAndVersionsAreNamed) {
  std::vector<SavedRecord> swapped = RecordsOfSmall();
  std::swap(swapped[FindEquation("pad")], swapped[FindInput()]);
  EXPECT_THAT(LoadProgram(Written(swapped)), FailsWith(kDataLoss, {"after equation 0: input is out of order"}));
  swapped = RecordsOfSmall();
  swapped.pop_back();
  EXPECT_THAT(LoadProgram(Written(swapped)), FailsWith(kDataLoss, {"after output ", "ends within a record"}));
  std::string later = *SaveProgram(Small());
  later[8] = 2;
  EXPECT_THAT(LoadProgram(later), FailsWith(kUnimplemented, {"byte 8: the format has version 2", "reads version 1"}));
  EXPECT_THAT(LoadProgram("{}"), FailsWith(kDataLoss, {"byte 0: no saved program"}));
}

// x times a number.
class Times : public CompositeBase {
 public:
  explicit Times(int factor) : factor_(factor) {}
  std::string Name() const override { return "times"; }
  std::string Attributes() const override { return absl::StrCat("factor=", factor_); }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override { return std::vector<Aval>{in[0]}; }
  Values Expand(absl::Span<const Value> in) const override { return {in[0] * static_cast<double>(factor_)}; }
  int factor() const { return factor_; }

 private:
  const int factor_;
};

TEST(ProgramProtoTest, CompositesHaveCodecs) {
  const absl::StatusOr<Program> program = testing::TraceWith(
      [](In in) {
        const NamedScope scope("mlp");
        return Bind(CompositeOp{std::make_shared<Times>(3)}, {in[0]}, std::source_location::current());
      },
      {Array::Scalar(2.0f)});
  ASSERT_THAT(program, IsOk());
  EXPECT_THAT(SaveProgram(*program), FailsWith(kUnimplemented, {"times [mlp]: there is no codec", "cannot be saved"}));
  const CompositeCodecs codecs = {
      {"times",
       {[](const Composite& c) { return absl::StrCat(dynamic_cast<const Times&>(c).factor()); },
        [](absl::string_view bytes) -> absl::StatusOr<std::shared_ptr<const Composite>> {
          if (bytes != "3") return absl::DataLossError("no factor");
          return std::make_shared<Times>(3);
        }}}};
  const absl::StatusOr<std::string> bytes = SaveProgram(*program, codecs);
  ASSERT_THAT(bytes, IsOk());
  const absl::StatusOr<Program> loaded = LoadProgram(*bytes, codecs);
  ASSERT_THAT(loaded, IsOk());
  EXPECT_EQ(Text(*loaded), Text(*program));
  EXPECT_THAT(LoadProgram(*bytes),
              FailsWith(kUnimplemented, {"equation 0: composite: the composite \"times\" is unknown"}));
  std::vector<SavedRecord> records = Records(*bytes);
  for (SavedRecord& record : records) {
    if (record.has_equation()) record.mutable_equation()->mutable_attributes(1)->set_text("4");
  }
  EXPECT_THAT(LoadProgram(Written(records), codecs), FailsWith(kDataLoss, {"the composite \"times\": no factor"}));
  for (SavedRecord& record : records) {
    if (record.has_equation()) record.mutable_equation()->mutable_attributes(0)->set_text("over");
  }
  const CompositeCodecs other = {
      {"over", {codecs.at("times").save, [](absl::string_view) { return std::make_shared<Times>(3); }}}};
  EXPECT_THAT(LoadProgram(Written(records), other),
              FailsWith(kDataLoss, {"the composite \"over\" has the configuration of another one"}));
}

// A call nested `depth` deep.
Values Nested(In in, int depth) {
  if (depth == 0) return {in[0] * 2.0};
  return ops::Call(
      absl::StrCat("f", depth), [=](In args) { return Nested(args, depth - 1); }, in);
}

TEST(ProgramProtoTest, CallsComeBackWithTheirBodies) {
  const Array x = Array::Of<float>({1, -2, 3}, {3});
  const absl::StatusOr<Program> loss = testing::TraceWith(
      [](In in) {
        const NamedScope scope("block");
        return Values{ops::ReduceSum(Nested(in, 2)[0] * in[0])};
      },
      {x});
  ASSERT_THAT(loss, IsOk());
  const absl::StatusOr<Program> gradient = ValueAndGrad(*loss, {0});
  ASSERT_THAT(gradient, IsOk());
  EXPECT_EQ(testing::CountOps(*gradient, "call"), 2);
  const std::string bytes = *SaveProgram(*gradient);
  const absl::StatusOr<Program> loaded = LoadProgram(bytes);
  ASSERT_THAT(loaded, IsOk());
  EXPECT_EQ(Text(*loaded), Text(*gradient));
  EXPECT_EQ(*SaveProgram(*loaded), bytes);
  EXPECT_TRUE(SameBits((*Eval(*loaded, {x}))[1], (*Eval(*gradient, {x}))[1]));
  for (const Equation& eqn : loaded->eqns) {
    if (OpName(eqn.op) == "call") {
      EXPECT_THAT(CallName(eqn.op), ::testing::AnyOf("f2", "grad(f2)"));
      EXPECT_NE(CallBody(eqn.op), nullptr);
    }
  }
  // An error inside is reported with the enclosing call.
  std::vector<SavedRecord> records = Records(bytes);
  for (SavedRecord& record : records) {
    if (record.equation().op() == "call") record.mutable_equation()->mutable_attributes(1)->mutable_text()->back() ^= 1;
  }
  EXPECT_THAT(LoadProgram(Written(records)), FailsWith(kDataLoss, {"equation 0: call: \"f2\": byte ", "altered"}));
}

TEST(ProgramProtoTest, CallsAreNotNestedWithoutEnd) {
  const auto program = [](int depth) {
    return *testing::TraceWith([=](In in) { return Nested(in, depth); }, {Array::Scalar(2.0f)});
  };
  std::string bytes = *SaveProgram(program(32));
  EXPECT_EQ(Text(*LoadProgram(bytes)), Text(program(32)));
  EXPECT_THAT(SaveProgram(program(33)), FailsWith(kUnimplemented, {"within 32 calls"}));
  // A file with one more level.
  std::vector<SavedRecord> records = Records(bytes);
  for (SavedRecord& record : records) {
    if (record.has_equation()) record.mutable_equation()->mutable_attributes(1)->set_text(bytes);
  }
  EXPECT_THAT(LoadProgram(Written(records)), FailsWith(kUnimplemented, {"within 32 calls"}));
}

// Each operation once, on constants, with results that are the same on every machine.
Values EveryOperation() {
  const Value x(Array::Of<float>({1.5f, -2, 0.25f, 3, -0.5f, 8}, {2, 3}));
  const Value n(Array::Of<int32_t>({2, 0, 5}, {3}));
  const Value s(Array::Of<int8_t>({1, -2, 3, 4, -5, 6}, {2, 3}));
  const Value b = ops::Greater(x, 0.0);
  Values out = {
      ops::Clamp(-1.0, x, 2.0),
      ops::IsFinite(x / 0.0),
      ops::IntegerPow(x, -3),
      ops::ReducePrecision(x, 4, 1),
      ops::Select(b, x, 7.0),
      ops::Cast(x, DType::kBF16),
      ops::BroadcastInDim(x, {2, 2, 3}, {0, 2}),
      ops::Reshape(x, {3, 2}),
      ops::Transpose(x, {1, 0}),
      ops::Slice(x, {0, 1}, {2, 3}, {1, 2}),
      ops::Pad(x, {1, 0}, {0, 2}, {0, 1}, -0.5),
      ops::Pad(x, {-1, 0}, {1, -1}, {0, 1}, 2),
      ops::Reverse(x, {1}),
      ops::Iota(DType::kF16, {2, 3}, 1),
      ops::ArgMax(x, 1),
      ops::ArgMin(x, 0),
      ops::CumulativeSum(x, 1, true),
      ops::Take(x, n, 1),
      ops::ScatterAdd(n, x, 4, 1),
      ops::ReduceWindowSum(x, {{1, 2}, {1, 1}, {0, 1}, {0, 0}}),
      ops::ReduceWindowMax(x, {{2, 2}, {1, 2}, {1, 0}, {0, 1}}),
      ops::ReduceWindowMin(x, {{2, 1}, {}, {}, {}}),
      ops::WindowArgMax(x, {{2, 2}, {}, {}, {}}),
      ops::WindowArgMin(x, {{2, 2}, {}, {}, {}}),
      ops::RandomBits(Value(Array::Of<uint32_t>({1, 2}, {2})), {5}),
      ops::Concatenate({x, x}, 1),
      ops::DotGeneral(s, s, {.lhs_contracting = {1}, .rhs_contracting = {1}, .lhs_batch = {0}, .rhs_batch = {0}}),
      ops::Bitcast(x, DType::kS32),
      ops::StopGradient(x)};
  for (int i = 0; i < kernels::kNumUnaryKinds; ++i) {
    const UnaryOp op{static_cast<kernels::UnaryKind>(i)};
    const bool logic = kernels::Takes(op.kind, DType::kBool);
    out.push_back(Bind(op, {logic ? b : x}, std::source_location::current())[0]);
  }
  for (int i = 0; i < kernels::kNumBinaryKinds; ++i) {
    const BinaryOp op{static_cast<kernels::BinaryKind>(i)};
    const bool logic = kernels::Takes(op.kind, DType::kBool);
    out.push_back(
        Bind(op, logic ? Values{b, ops::Not(b)} : Values{x, ops::Reverse(x, {0})}, std::source_location::current())[0]);
  }
  for (int i = 0; i < kernels::kNumCompareKinds; ++i) {
    out.push_back(Bind(CompareOp{static_cast<kernels::CompareKind>(i)}, {x, ops::Reverse(x, {1})},
                       std::source_location::current())[0]);
  }
  for (int i = 0; i < kernels::kNumReduceKinds; ++i) {
    out.push_back(
        Bind(ReduceOp{static_cast<kernels::ReduceKind>(i), {1}, i % 2 == 0}, {x}, std::source_location::current())[0]);
  }
  return out;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Files of every version of the format load forever, and give the same results as before. (The results were rewritten
// when functions of f32 changed in their last bits.)
TEST(ProgramProtoTest, OldFilesLoad) {
  const absl::StatusOr<Program> now = Trace([](In) { return EveryOperation(); }, {});
  ASSERT_THAT(now, IsOk());
  for (const Op& op : testing::AllBasicOps()) EXPECT_GE(testing::CountOps(*now, OpName(op)), 1) << OpName(op);
  if (const char* folder = std::getenv("AQT_TEST_WRITE"); folder != nullptr) {
    const std::vector<Array> results = *Eval(*now, {});
    const absl::StatusOr<Program> constants = Trace([&](In) { return Values(results.begin(), results.end()); }, {});
    ASSERT_THAT(constants, IsOk());
    std::ofstream(absl::StrCat(folder, "/every_op_v1.aqtprog"), std::ios::binary) << *SaveProgram(*now);
    std::ofstream(absl::StrCat(folder, "/every_op_v1_results.aqtprog"), std::ios::binary) << *SaveProgram(*constants);
  }
  const std::string bytes = ReadFile("aqt/graph/saved/testdata/every_op_v1.aqtprog");
  const absl::StatusOr<Program> program = LoadProgram(bytes),
                                results = LoadProgram(ReadFile("aqt/graph/saved/testdata/every_op_v1_results.aqtprog"));
  ASSERT_THAT(program, IsOk());
  ASSERT_THAT(results, IsOk());
  EXPECT_EQ(*SaveProgram(*program), bytes);
  const absl::StatusOr<std::vector<Array>> got = Eval(*program, {}), want = Eval(*results, {});
  ASSERT_THAT(got, IsOk());
  ASSERT_THAT(want, IsOk());
  ASSERT_EQ(got->size(), want->size());
  EXPECT_GE(got->size(), 60u);
  for (size_t i = 0; i < got->size(); ++i) EXPECT_TRUE(SameBits((*got)[i], (*want)[i])) << "output " << i;
}

}  // namespace
}  // namespace aqt
