// A variable of this process's environment, for a scope.
#pragma once
#include <stdlib.h>

#include <string>

namespace test {
class environment_variable {
  public:
    environment_variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
    environment_variable(const environment_variable&) = delete;
    environment_variable& operator=(const environment_variable&) = delete;
    ~environment_variable() { ::unsetenv(name_); }

  private:
    const char* name_;
};
}  // namespace test
