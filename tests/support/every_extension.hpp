// The library with every extension that needs no other library.
#pragma once
#include <ojs_client.hpp>
#include <ojs_events.hpp>
#include <ojs_launcher.hpp>
#include <ojs_ledger.hpp>
#include <ojs_memory.hpp>
#include <ojs_ops.hpp>
#include <ojs_server.hpp>
#include <ojs_spool.hpp>
