// The `aqt` command without the library's programs.

#include "serving/cli/convert_command.h"
#include "serving/cli/process.h"

int main(int argc, char** argv) { return aqt::serving::RunProcess(argc, argv, aqt::serving::ConvertMain); }
