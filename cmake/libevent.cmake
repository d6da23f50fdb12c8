# libevent for the server. A request with both a length and chunks, by which requests are smuggled past a proxy, is
# refused since Debian's 2.1.12-stable-8+deb12u1, whose number is that of the one before it. Where there are Debian's
# packages they tell; everywhere the server tries it when it begins to listen (serve/http_probe.c).
set(MK_LIBEVENT_DEBIAN "2.1.12-stable-8+deb12u1")
pkg_check_modules(LIBEVENT REQUIRED IMPORTED_TARGET libevent_core>=2.1.12 libevent_extra>=2.1.12)
find_program(MK_DPKG dpkg)
find_program(MK_DPKG_QUERY dpkg-query)
if(MK_DPKG AND MK_DPKG_QUERY)
  foreach(package libevent-core-2.1-7 libevent-extra-2.1-7 libevent-core-2.1-7t64 libevent-extra-2.1-7t64)
    execute_process(COMMAND ${MK_DPKG_QUERY} -W -f=\${Version} ${package}
                    OUTPUT_VARIABLE version ERROR_QUIET RESULT_VARIABLE result)
    if(result EQUAL 0 AND NOT version STREQUAL "")
      execute_process(COMMAND ${MK_DPKG} --compare-versions ${version} ge ${MK_LIBEVENT_DEBIAN} RESULT_VARIABLE older)
      if(NOT older EQUAL 0)
        message(FATAL_ERROR "${package} is ${version}, which lets requests be smuggled past a proxy: "
                            "install ${MK_LIBEVENT_DEBIAN} or newer (apt-get update, apt-get install libevent-dev)")
      endif()
      list(APPEND MK_LIBEVENT_DEPENDS "${package} (>= ${MK_LIBEVENT_DEBIAN})") # cmake/packages.cmake
    endif()
  endforeach()
endif()
