exports.run = function (i) { return 'imported' }; exports.os = require('os');
