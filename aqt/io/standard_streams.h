#ifndef AQT_IO_STANDARD_STREAMS_H_
#define AQT_IO_STANDARD_STREAMS_H_

namespace aqt::io {

// Opens /dev/null in place of standard input, output and error where they are closed (`program <&- >&- 2>&-`). Without
// this the first file that a program opens gets the number of a closed one, and what it prints goes into that file. To
// be called first thing in main. False, with errno, when it fails: the program must not open any file then.
bool OpenStandardStreams();

}  // namespace aqt::io

#endif  // AQT_IO_STANDARD_STREAMS_H_
