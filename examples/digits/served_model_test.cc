#include "examples/digits/served_model.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "aqt/nn/train/state_file.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "examples/digits/classifier.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace digits {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;

const aqt::io::FileSystem& Fs() { return aqt::io::LocalFileSystem(); }

std::string Path(const std::string& name) { return ::testing::TempDir() + "/" + name; }

ServedModel Int8Model() {
  absl::StatusOr<aqt::InjectConfig> config =
      aqt::InjectConfigFromText("schema: 1 rules { dot_general { base: 'fully_quantized_int8' } }");
  EXPECT_THAT(config, IsOk());
  absl::StatusOr<ServedModel> model = Freeze({8, 4}, *config, *InitialParams({8, 4}, 1));
  EXPECT_THAT(model, IsOk());
  return *std::move(model);
}

TEST(ServedModel, ComesBackFromItsFile) {
  const ServedModel model = Int8Model();
  ASSERT_THAT(Write(model, Fs(), Path("model")), IsOk());
  absl::StatusOr<ServedModel> again = ReadServedModel(Fs(), Path("model"));
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->hidden, model.hidden);
  EXPECT_TRUE(again->config == model.config);
  const aqt::Array pixels = aqt::testing::RandomArray({aqt::DType::kF32, {5, kPixels}}, 1, 0, 1);
  absl::StatusOr<aqt::Array> want = Serve(model, pixels), got = Serve(*again, pixels);
  ASSERT_THAT(want, IsOk());
  ASSERT_THAT(got, IsOk());
  EXPECT_TRUE(BitEqual(*want, *got));
}

TEST(ServedModel, DamagedFiles) {
  const ServedModel model = Int8Model();
  const auto read = [&](const aqt::nn::StateFile& file) {
    EXPECT_THAT(aqt::nn::SaveState(Fs(), Path("damaged"), file), IsOk());
    return ReadServedModel(Fs(), Path("damaged")).status();
  };
  const std::string inject = ToText(model.config);
  EXPECT_THAT(read({model.values, {{"hidden", "8,4"}, {"inject", inject}}}), IsOk());
  constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
  EXPECT_THAT(read({model.values, {{"inject", inject}}}), FailsWith(kDataLoss, {"damaged: ", "\"hidden\" is missing"}));
  EXPECT_THAT(read({model.values, {{"hidden", "8,4"}}}), FailsWith(kDataLoss, {"damaged: ", "\"inject\" is missing"}));
  EXPECT_THAT(read({model.values, {{"hidden", "8,x"}, {"inject", inject}}}), FailsWith(kDataLoss, {"\"8,x\""}));
  EXPECT_THAT(read({model.values, {{"hidden", "8,0"}, {"inject", inject}}}), FailsWith(kDataLoss, {"\"8,0\""}));
  EXPECT_THAT(read({model.values, {{"hidden", "8,4"}, {"inject", "schema: 1 rules {"}}}),
              FailsWith(kDataLoss, {"damaged: metadata \"inject\":1:"}));
  // Tensors of another model.
  EXPECT_THAT(read({model.values, {{"hidden", "8,5"}, {"inject", inject}}}),
              FailsWith(kDataLoss, {"damaged: ", "param \"mlp/fc2/bias\" is f32[4], expected f32[5]"}));
  for (const aqt::Slot& slot :
       {aqt::Slot{aqt::SlotKind::kFrozen, "mlp/logits/qrhs/scale"}, aqt::Slot{aqt::SlotKind::kParam, "mlp/fc1/bias"}}) {
    aqt::SlotValues fewer = model.values;
    fewer.erase(slot);
    EXPECT_THAT(read({fewer, {{"hidden", "8,4"}, {"inject", inject}}}),
                FailsWith(kDataLoss, {"damaged: ", slot.ToString(), "is missing"}));
  }
  EXPECT_THAT(ReadServedModel(Fs(), Path("missing")), FailsWith(absl::StatusCode::kNotFound, {"missing"}));
}

}  // namespace
}  // namespace digits
