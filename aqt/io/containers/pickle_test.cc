#include "aqt/io/containers/pickle.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A text with embedded zeros.
template <size_t N>
std::string Raw(const char (&text)[N]) {
  return std::string(text, N - 1);
}

std::string Text(const std::string& text) {
  return absl::StrCat("\x8c", std::string(1, static_cast<char>(text.size())), text);
}
std::string Global(const std::string& module, const std::string& name) {
  return absl::StrCat("c", module, "\n", name, "\n");
}
const char kOrderedDict[] = "ccollections\nOrderedDict\n)R";

std::string Storage(const std::string& type = "FloatStorage") {
  return absl::StrCat("(", Text("storage"), Global("torch", type), Text("0"), Text("cpu"), "K\x06tQ");
}
// _rebuild_tensor_v2(storage, 1, (2, 2), (2, 1), False, OrderedDict())
std::string Tensor(const std::string& more = "") {
  return absl::StrCat(Global("torch._utils", "_rebuild_tensor_v2"), "(", Storage(),
                      "K\x01K\x02K\x02\x86K\x02K\x01\x86\x89", kOrderedDict, more, "tR");
}
std::string Dict(const std::string& key, const std::string& value) {
  return absl::StrCat("\x80\x02}", Text(key), value, "s.");
}

TEST(Pickle, DescribesTensors) {
  const auto read = ReadPickledTensors(Dict("w", Tensor()));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->tensors.size(), 1u);
  const PickledTensor& tensor = read->tensors[0];
  EXPECT_EQ(tensor.name, "w");
  EXPECT_EQ(tensor.dtype, FileDType::kF32);
  EXPECT_EQ(tensor.shape, Shape({2, 2}));
  EXPECT_THAT(tensor.strides, ElementsAre(2, 1));
  EXPECT_EQ(tensor.offset, 1);
  EXPECT_EQ(read->storages[0].key, "0");
  EXPECT_EQ(read->storages[0].bytes(), 24);
}

TEST(Pickle, WhatStateDictsHave) {
  EXPECT_TRUE(ReadPickledTensors(Dict("w", Tensor("}"))).ok());  // no flags
  EXPECT_TRUE(ReadPickledTensors(Dict("w", absl::StrCat(Global("torch._utils", "_rebuild_parameter"), "(", Tensor(),
                                                        "\x88", kOrderedDict, "tR")))
                  .ok());
  EXPECT_TRUE(
      ReadPickledTensors(absl::StrCat("\x80\x02", kOrderedDict, "}", Text("_metadata"), kOrderedDict, "sb.")).ok());
}

struct Hostile {
  const char* what;
  std::string pickle;
  const char* message;
};

// Each is a way to run code or to do harm with Python's own reader, or is not a part of describing tensors.
std::vector<Hostile> HostilePickles() {
  const auto call = [](const std::string& module, const std::string& name) {
    return absl::StrCat("\x80\x02", Global(module, name), Text("touch /tmp/x"), "\x85R.");
  };
  return {
      {"os.system", call("os", "system"), "opcode GLOBAL at byte 2 of the pickle asks for 'os.system'"},
      {"posix.system", call("posix", "system"), "'posix.system'"},
      {"eval", call("builtins", "eval"), "'builtins.eval'"},
      {"exec of Python 2", call("__builtin__", "execfile"), "'__builtin__.execfile'"},
      {"subprocess", call("subprocess", "Popen"), "'subprocess.Popen'"},
      {"getattr", call("builtins", "getattr"), "'builtins.getattr'"},
      {"import", call("importlib", "import_module"), "'importlib.import_module'"},
      {"torch.load", call("torch.serialization", "load"), "'torch.serialization.load'"},
      {"a name inside a known module", call("collections", "_sys.modules"), "'collections._sys.modules'"},
      {"numpy arrays", call("numpy.core.multiarray", "_reconstruct"), "'numpy.core.multiarray._reconstruct'"},
      {"a whole module", call("torch.nn.modules.linear", "Linear"), "'torch.nn.modules.linear.Linear'"},
      {"quantized tensors", call("torch._utils", "_rebuild_qtensor"), "'torch._utils._rebuild_qtensor'"},
      {"a name from the stack", absl::StrCat("\x80\x04", Text("os"), Text("system"), "\x93."),
       "opcode STACK_GLOBAL at byte 14 of the pickle asks for 'os.system'"},
      {"INST", "\x80\x02(S'id'\nios\nsystem\n.", "opcode STRING at byte 3"},
      {"INST alone", "\x80\x02(ios\nsystem\n.", "opcode INST at byte 3"},
      {"OBJ", absl::StrCat("\x80\x02(", kOrderedDict, "o."), "opcode OBJ at byte"},
      {"NEWOBJ", absl::StrCat("\x80\x02", Global("collections", "OrderedDict"), ")\x81."), "opcode NEWOBJ at byte"},
      {"NEWOBJ_EX", absl::StrCat("\x80\x04", Global("collections", "OrderedDict"), ")}\x92."), "opcode NEWOBJ_EX"},
      {"EXT1", "\x80\x02\x82\x01.", "opcode EXT1 at byte 2"},
      {"EXT4", "\x80\x02\x84\x01\x01\x01\x01.", "opcode EXT4 at byte 2"},
      {"PERSID", "\x80\x02Pstorage\n.", "opcode PERSID at byte 2"},
      {"NEXT_BUFFER", "\x80\x05\x97.", "opcode NEXT_BUFFER at byte 2"},
      {"BINBYTES8", Raw("\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xff."), "opcode BINBYTES8 at byte 2"},
      {"BUILD of a name", absl::StrCat("\x80\x02", Global("collections", "OrderedDict"), "}b."), "opcode BUILD"},
      {"BUILD of a tensor", absl::StrCat("\x80\x02", Tensor(), "}b."), "opcode BUILD"},
      {"calling a type", absl::StrCat("\x80\x02", Global("torch", "FloatStorage"), ")R."), "calls torch.FloatStorage"},
      {"a dict from arguments", absl::StrCat("\x80\x02", Global("collections", "OrderedDict"), "]\x85R."),
       "with arguments"},
      {"another kind of identity", absl::StrCat("\x80\x02", Text("os.system"), "\x85Q."), "opcode BINPERSID at byte"},
      {"a lazily negated tensor", Dict("w", Tensor(absl::StrCat("}", Text("neg"), "\x88s"))), ".resolve_neg()"},
      {"an unknown opcode", "\x80\x02\xfe.", "opcode 0xfe at byte 2"},
      {"version 1", "\x80\x01}.", "says version 1"},
      {"LONG4", Raw("\x80\x02\x8b\x04\x00\x00\x00...."), "opcode LONG4 at byte 2"},
      {"a huge number", absl::StrCat("\x80\x02\x8a\xff", std::string(255, '\x7f'), "."), "a number of 255 bytes"},
      {"FROZENSET", "\x80\x04(\x91.", "opcode FROZENSET"},
  };
}

TEST(Pickle, RefusesHostileOnesByOpcode) {
  ASSERT_GE(HostilePickles().size(), 20u);
  for (const Hostile& hostile : HostilePickles()) {
    const auto read = ReadPickledTensors(hostile.pickle);
    EXPECT_TRUE(absl::IsUnimplemented(read.status())) << hostile.what << ": " << read.status();
    EXPECT_THAT(read.status().message(), AllOf(HasSubstr(hostile.message), HasSubstr("nothing was executed")))
        << hostile.what;
  }
}

TEST(Pickle, DamagedOnes) {
  const auto message = [](const std::string& pickle) {
    const auto read = ReadPickledTensors(pickle);
    EXPECT_TRUE(absl::IsDataLoss(read.status())) << read.status();
    return std::string(read.status().message());
  };
  EXPECT_THAT(message(""), HasSubstr("is cut off"));
  EXPECT_THAT(message("\x80\x02}"), HasSubstr("at byte 3 of the pickle is cut off"));
  EXPECT_THAT(message("\x80\x02."), HasSubstr("opcode STOP at byte 2 of the pickle needs a value"));
  EXPECT_THAT(message("\x80\x02t."), HasSubstr("needs a mark"));
  EXPECT_THAT(message("\x80\x02}(u(s."), HasSubstr("needs a value"));  // not below the mark
  EXPECT_THAT(message("\x80\x02}h\x07."), HasSubstr("asks for value 7, which was not kept"));
  EXPECT_THAT(message("\x80\x02]NNs."), HasSubstr("needs a dict"));
  EXPECT_THAT(message("\x80\x02}Na."), HasSubstr("needs a list"));
  EXPECT_THAT(message("\x80\x02}(Nu."), HasSubstr("has a key without value"));
  EXPECT_THAT(message("\x80\x02NNR."), HasSubstr("does not call a name"));
  EXPECT_THAT(message(Raw("\x80\x02X\xff\xff\xff\xff.")), HasSubstr("BINUNICODE at byte 2 of the pickle is cut off"));
  std::string tensor = Dict("w", Tensor());
  const size_t offset = tensor.find("tQ") + 2;
  tensor.replace(offset, 2, Raw("N"));
  EXPECT_THAT(message(tensor), HasSubstr("does not describe a tensor"));
  EXPECT_THAT(message(Dict("w", absl::StrCat(Global("torch._utils", "_rebuild_tensor_v2"), "(", Storage(),
                                             Raw("K\x00J\xff\xff\xff\xff\x85K\x01K\x01\x86\x89"), kOrderedDict, "tR"))),
              HasSubstr("wrong shape, strides or offset"));
}

TEST(Pickle, IsBounded) {
  const auto message = [](const std::string& pickle) {
    const auto read = ReadPickledTensors(pickle);
    EXPECT_TRUE(absl::IsUnimplemented(read.status())) << read.status();
    return std::string(read.status().message());
  };
  // A list of 10 lists of 10 lists ..: 10^12 values.
  std::string lists = "\x80\x02]q\x01";
  for (char level = 1; level <= 12; ++level) {
    absl::StrAppend(&lists, "](");
    for (int i = 0; i < 10; ++i) absl::StrAppend(&lists, "h", std::string(1, level));
    absl::StrAppend(&lists, "eq", std::string(1, static_cast<char>(level + 1)));
  }
  std::string inner = lists + "]" + "}" + Text("w") + "h\x0ds.";
  EXPECT_THAT(message(inner), HasSubstr("the names in the pickle exceed 16777216 bytes"));
  EXPECT_THAT(message("\x80\x02}q\x01" + Text("w") + "h\x01s."), HasSubstr("64 dicts in each other"));  // in itself
  EXPECT_THAT(message("\x80\x02" + std::string(600'000, 'N') + "."), HasSubstr("524288 values"));
  EXPECT_THAT(message("\x80\x02" + std::string(5'000'000, '(') + "."), HasSubstr("524288 values"));
  std::string texts = "\x80\x02]";
  while (texts.size() <= 17'000'000)
    texts += absl::StrCat("X", Raw("\x00\x00\x10\x00"), std::string(1 << 20, 'x'), "a");
  EXPECT_THAT(message(texts + "."), HasSubstr("more than 16777216 bytes"));
}

TEST(Pickle, NotADict) {
  EXPECT_THAT(ReadPickledTensors(absl::StrCat("\x80\x02", Tensor(), ".")).status().message(),
              HasSubstr("does not describe a dict of tensors"));
  EXPECT_THAT(ReadPickledTensors("\x80\x02}NNs.").status().message(), HasSubstr("neither text nor number"));
}

}  // namespace
}  // namespace aqt::io
