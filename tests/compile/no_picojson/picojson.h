// Stands in front of the real one on the include path of accept_twice.cpp.
#error picojson is not there
