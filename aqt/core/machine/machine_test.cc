#include "aqt/core/machine/machine.h"

#include "gtest/gtest.h"

namespace aqt {
namespace {

TEST(MachineTest, CachesOfThisMachineAreCaches) {
  const Machine& machine = ThisMachine();
  EXPECT_GE(machine.l1_bytes, 4 << 10);
  EXPECT_GE(machine.l2_bytes, machine.l1_bytes);
  EXPECT_GT(machine.l3_bytes, 0);
  EXPECT_EQ(&ThisMachine(), &machine);
}

}  // namespace
}  // namespace aqt
