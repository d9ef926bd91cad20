// storage: the jobs in an SQLite file.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "library.hpp"
#include "row.hpp"

namespace dev_backend {

// Of one thread at a time. While it is open no other process can open the file.
class storage {
  public:
    // Makes the file where there is none. `full_sync` false: what was committed last may be lost with the machine's power,
    // not with the process. Errors: busy where another process has it, else system.
    static ojs::result<storage> open(const std::string& path, bool full_sync);
    storage(storage&&) noexcept;
    storage& operator=(storage&&) noexcept;
    ~storage();

    // In the order of their turns. A row that `take` refuses is an error that names its job.
    ojs::result<void> load(const std::function<void(const row&)>& take);
    // All of it or nothing.
    ojs::result<void> commit(const std::vector<changed_rows>& batches);

  private:
    class impl;
    explicit storage(std::unique_ptr<impl> body);
    std::unique_ptr<impl> impl_;
};

}  // namespace dev_backend
