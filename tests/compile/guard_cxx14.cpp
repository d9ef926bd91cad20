// expect: needs C++17: compile with -std=c++17 or later
// flags: -std=c++14
#include HEADER
